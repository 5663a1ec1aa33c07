"""Runs programs in ExecuTorch's runtime, in separate processes: a damaged program can crash the runtime."""
