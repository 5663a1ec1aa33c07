"""Precision: methods that compute in 16-bit floats, and have float32 inputs and outputs."""
