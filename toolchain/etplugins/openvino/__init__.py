"""OpenVINO: Intel's CPUs, GPUs and NPUs."""
