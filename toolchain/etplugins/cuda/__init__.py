"""CUDA: Nvidia's GPUs, through PyTorch's ahead-of-time Inductor."""
