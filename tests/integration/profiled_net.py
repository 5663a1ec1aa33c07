"""A model whose operators come from different lines, its manifest, and a build of it that keeps the lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from etbuild.inputs.step_context import silent
from etbuild.key.declared import Inputs
from etbuild.manifest import validate
from etbuild.plan.plan import from_manifest
from etbuild.steps.lowering_options import LoweringOptions
from etkit.local.build import BuildOptions, build

MODEL = """\
import torch
from torch._higher_order_ops.scan import scan


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x):
        y = self.linear(x).relu()
        return torch.cumsum(y, 1)

    def count(self, x):
        self.seen.add_(x.sum(0))
        return self.linear(self.seen * 2), x.argmax(-1), x > 0

    def branch(self, x):
        y = torch.cond(x.sum() > 0, lambda x: torch.cumsum(x, 0), lambda x: x.sin(), (x,))
        return torch.erf(y)

    def loop(self, x):
        def step(total, row):
            return total + torch.cumsum(row, 0), total.clone()

        total, rows = scan(step, torch.zeros(8), x)
        return total + rows

    def scaled(self, x, by: int):
        return by * 2, torch.cumsum(x * by, 0)


def create():
    torch.manual_seed(0)
    return Net()
"""


MANIFEST = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
methods:
  forward: {example_inputs: [{shape: [2, 8]}], partitioners: [xnnpack]}
  count: {example_inputs: [{shape: [2, 8]}], partitioners: [xnnpack]}
  branch: {example_inputs: [{shape: [2, 8]}]}
  scaled: {example_inputs: [{shape: [2, 8]}, {value: 3}]}
named_data: {weights: {parameters: ["linear.*"]}}
"""


def build_origins(root: Path, directory: Path, lowering: LoweringOptions) -> dict[str, Any]:
    directory.mkdir()
    plan = from_manifest(validate.load(root / "model.yaml").data)
    build(plan, Inputs({}, {}, [root]), directory, BuildOptions(silent, lowering=lowering, origins=directory))
    found: dict[str, Any] = json.loads((directory / "net.lowering.json").read_text())
    return found
