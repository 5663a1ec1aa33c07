"""A two-layer perceptron: the smallest program."""

import math

import torch
from torch import Tensor, nn


class MLP(nn.Module):
    """Scores for `outputs` classes."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.up = nn.Linear(inputs, hidden)
        self.down = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """x: float32 [batch, inputs] -> float32 [batch, outputs]"""
        return self.down(torch.relu(self.up(x)))


def _fill(parameter: Tensor, seed: int) -> None:
    """Evenly spread values in [-bound, bound), computed only with integers.

    torch.randn gives other numbers on another processor; these are the same bits everywhere.
    """
    state = torch.arange(parameter.numel()) + seed
    for _ in range(3):
        state = (state * 1103515245 + 12345) % 2**31
        state = state ^ (state >> 16)
    bound = 2.0 ** -math.ceil(math.log2(parameter.shape[-1]) / 2)
    values = (state // 2**7 - 2**23) / 2**23 * bound  # 24 bits: exact in float32
    parameter.copy_(values.reshape(parameter.shape))


def create(inputs: int = 16, hidden: int = 32, outputs: int = 4) -> MLP:
    """The module that the manifest names as its factory."""
    model = MLP(inputs, hidden, outputs)
    with torch.no_grad():
        for seed, parameter in enumerate(model.parameters()):
            _fill(parameter, seed * 1_000_003)
    return model
