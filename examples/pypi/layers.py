"""Layers that several models share."""

import torch
from torch import Tensor, nn


class Scores(nn.Module):
    """Scores between 0 and 1."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        nn.init.constant_(self.linear.weight, 0.5)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """x: float32 [batch, inputs] -> float32 [batch, outputs]"""
        return torch.sigmoid(self.linear(x))
