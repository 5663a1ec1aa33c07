"""Apple's GPUs: Metal, through PyTorch's ahead-of-time Inductor; and MLX, through Apple's array library."""
