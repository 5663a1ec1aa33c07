"""The driver of rules_executorch: a manifest and a PyTorch model become an ExecuTorch program."""

__version__ = "0.1.0"
