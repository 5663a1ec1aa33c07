"""Makes the PyTorch module of a program, and reads its weights."""
