"""The names of ExecuTorch's stages."""

STAGES = ("source_transform", "quantize", "export", "to_edge", "lower", "to_executorch")
"""ExecuTorch's stages of an export, in their order, with the names that `--stop-after` takes."""
