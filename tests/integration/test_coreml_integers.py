"""Core ML gets the conversions that PyTorch makes where floating-point numbers are computed from integers."""

from __future__ import annotations

import pytest

from .conftest import Build

MODEL = """\
import torch

class Net(torch.nn.Module):
    def table(self, x, n):
        return torch.nn.functional.embedding(n[0, 0], x[0]) + x[0][n[0, 0]] + torch.outer(n[0, 0], x[0, 0])[:, :8]

    def forward(self, x, n):
        return x / torch.sqrt(n), x * n.exp() + torch.log(n), x / n, torch.where(n > 1, n, x)

def create():
    return Net()
"""
MANIFEST = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
defaults: {partitioners: [{backend: coreml, options: {multimethod_weight_sharing_strategy: disabled}}]}
methods:
  forward: {example_inputs: [{shape: [1, 16, 8]}, {shape: [1, 16, 8], dtype: int64, fill: 3}]}
  table: {entry: table, example_inputs: [{shape: [1, 16, 8]}, {shape: [1, 16, 8], dtype: int64, fill: 3}]}
"""


def test_core_ml_takes_operators_on_integers_whose_results_are_no_integers(build: Build) -> None:
    pytest.importorskip("coremltools")
    made = build(MANIFEST, model=MODEL)
    assert made.code == 0, made.err
    operators = made.json("net.report.json")["methods"]["forward"]["operators"]
    assert {"aten::sqrt", "aten::exp", "aten::log", "aten::div.Tensor"} <= operators["delegated"][
        "CoreMLBackend"
    ].keys()
    operators = made.json("net.report.json")["methods"]["table"]["operators"]
    assert {"aten::outer", "aten::embedding"} <= operators["delegated"]["CoreMLBackend"].keys()
