"""Quantization: torchao quantizes weights before the export, and PT2E quantizes methods after it."""
