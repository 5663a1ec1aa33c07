"""A method of any number of operators, without weights."""

import torch
from torch import Tensor, nn


class Chain(nn.Module):
    """Operators that follow each other; XNNPACK takes all but each fourth."""

    def __init__(self, operators: int) -> None:
        super().__init__()
        self.operators = operators

    def forward(self, x: Tensor) -> Tensor:
        """x: float32 [1, 16] -> float32 [1, 16]"""
        for number in range(0, self.operators, 4):
            x = torch.erf(torch.tanh(x * (1 + number / 1000)) + x)
        return x


def create(operators: int) -> Chain:
    """The module that the manifests name as their factory."""
    return Chain(operators)
