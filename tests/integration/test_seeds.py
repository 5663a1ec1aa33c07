"""The random numbers that a model draws from PyTorch, NumPy and Python are the same in each build."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from .conftest import MANIFEST, Build

DRAWS = {
    "torch": "torch.rand(8).tolist()",
    "numpy": "numpy.random.rand(8).tolist()",
    "random": "[random.random() for _ in range(8)]",
}
MODEL = """\
import numpy, random, torch

IMPORTED = {draws}

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([IMPORTED, {draws}]))

    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight) + torch.tensor({draws}[:2])

def create():
    return Net()
"""


@pytest.mark.parametrize("draws", DRAWS.values(), ids=DRAWS)
def test_numbers_are_those_of_the_seed(draws: str, build: Build) -> None:
    """When a module is imported, in the factory, and while a method is exported."""
    made = []
    for seed in (1, 1, 2**63 - 1):
        for generator in (random, np.random, torch):
            generator.seed() if generator is not torch else torch.seed()  # as if the process had drawn numbers before
        manifest = MANIFEST.replace('"model:create"', f'"model:create"\n  seed: {seed}')
        manifest += "checks: {compare: {leave_out: a call of the model draws other numbers}}\n"
        outcome = build(manifest, model=MODEL.format(draws=draws))
        assert outcome.code == 0, outcome.err
        made.append(outcome.read("net.pte"))
    assert made[0] == made[1] != made[2]
