"""Compares what a program computes in ExecuTorch's runtime with what its model computes in PyTorch."""
