"""A model with blocks, and its manifest, for tests of programs that run."""

from __future__ import annotations

MODEL = """\
import torch


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        return x + torch.tanh(self.linear(x))


class Net(torch.nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block() for _ in range(depth)])
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x

    def count(self, x):
        self.seen.add_(x.sum(0))
        y = self.seen * 2
        return y, {"largest": x.argmax(-1), "positive": x > 0}


def create(depth=2):
    return Net(depth)
"""


MANIFEST = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
defaults: {partitioners: [xnnpack]}
methods:
  forward:
    example_inputs: [{shape: [2, 8], fill: arange}]
    dynamic_shapes: [[{dim: n, min: 1, max: 4}, null]]
  count:
    example_inputs: [{shape: [2, 8], fill: ones}]
"""
