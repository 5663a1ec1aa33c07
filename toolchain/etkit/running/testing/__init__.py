"""Tests a program: compares what it computes in ExecuTorch's runtime with what the model computes in eager PyTorch."""
