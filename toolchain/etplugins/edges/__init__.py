"""Edges: inputs and outputs of quantized methods that are integers, and the numbers that these stand for."""
