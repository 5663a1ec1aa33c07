"""Compares what a program computes in ExecuTorch's runtime with what its exported methods compute in PyTorch."""
