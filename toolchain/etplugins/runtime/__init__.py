"""Runs programs in ExecuTorch's runtime, in processes of their own: a damaged program can crash the runtime."""
