"""Compares a program's results in ExecuTorch's runtime with those of its model in PyTorch."""
