"""What to write in place of backends for Apple's GPUs that ExecuTorch no longer has."""

MPS = "ExecuTorch 1.5 has no backend for MPS: `coreml` runs on GPUs too, or use `mlx`"
