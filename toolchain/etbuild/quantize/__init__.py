"""Quantization: torchao's configurations before the export, PT2E after it."""
