"""Layers with the same weights on every machine, for models that nobody has trained."""

import torch
from torch import nn


def filled(layer: nn.Linear, seed: int) -> nn.Linear:
    """The layer with evenly spread weights in [-0.5, 0.5), computed only with integers."""
    with torch.no_grad():
        for parameter in layer.parameters():
            numbers = (torch.arange(parameter.numel()) * 7919 + seed) % 1024
            parameter.copy_(((numbers - 512) / 1024).reshape(parameter.shape))
    return layer
