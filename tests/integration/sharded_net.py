"""A model whose named data is in shards, and builds of it."""

from __future__ import annotations

import torch
from safetensors.torch import save

from .conftest import Build, Outcome

MODEL = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x

    def first(self, x):
        return self.layers[0](x)

def create():
    return Net()
"""
LAYER = 8 * 8 * 4 + 8 * 4  # bytes of a layer
MANIFEST = f"""\
schema: executorch-model/v1
name: net
model: {{factory: "model:create", weights: w.safetensors}}
defaults: {{partitioners: [xnnpack]}}
methods:
  forward: {{example_inputs: [{{shape: [1, 8]}}]}}
named_data:
  all: {{parameters: ["*"], shard_size: {LAYER}}}
"""


def weights(**edits: float) -> dict[str, torch.Tensor]:
    """Returns tensors of small exact numbers, all different. `edits` adds to single tensors."""
    made = {}
    for number in range(4):
        for kind, shape in (("weight", (8, 8)), ("bias", (8,))):
            size = torch.Size(shape).numel()
            base = torch.arange(size, dtype=torch.float32).reshape(shape) % 7 / 16 + number / 8 + 0.125
            made[f"layers.{number}.{kind}"] = base + edits.get(f"layer{number}_{kind}", 0.0)
    return made


def built(build: Build, manifest: str = MANIFEST, content: dict[str, torch.Tensor] | None = None) -> Outcome:
    made = build(manifest, model=MODEL, files={"w.safetensors": save(content or weights())})
    assert made.code == 0, made.err
    return made
