"""Benchmarks: how long calls of a program take in ExecuTorch's runtime, and what memory they need."""
