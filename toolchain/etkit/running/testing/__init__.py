"""Tests a program: compares its results in ExecuTorch's runtime with those of the model in eager PyTorch."""
