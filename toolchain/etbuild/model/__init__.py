"""The PyTorch module of a program, and its weights."""
