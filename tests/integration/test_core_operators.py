"""Operators that the driver writes with core ATen operators compute what PyTorch computes."""

from __future__ import annotations

import json
from math import inf, nan
from pathlib import Path

import torch

from tests.helpers import commands
from tests.helpers.runtime import run

MODEL = """
import torch

class Buckets(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("ends", torch.tensor([-1.0, 0.0, 0.0, 2.0]))

    def forward(self, x):
        later = torch.bucketize(x, self.ends, right=True)
        small = torch.bucketize(x, self.ends, out_int32=True)
        return later, small, torch.nn.functional.one_hot(later, 5).sum(1)

def create():
    return Buckets()
"""


def test_bucketize_counts_as_pytorch_does(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    method = {"example_inputs": [{"shape": [2, 5]}], "dynamic_shapes": [[None, {"dim": "n", "min": 2, "max": 9}]]}
    manifest = {
        "schema": "executorch-model/v1",
        "name": "net",
        "model": {"factory": "model:create"},
        "methods": {"forward": method},
    }
    (tmp_path / "model.yaml").write_text(json.dumps(manifest))
    commands.build(tmp_path / "model.yaml", tmp_path / "out")
    values = torch.tensor([[-2.0, -1.0, -0.5, 0.0, 0.1, 2.0, 3.0], [nan, inf, -inf, 2.0, 1.0, -0.0, -1.0]])
    ends = torch.tensor([-1.0, 0.0, 0.0, 2.0])
    [[[later, small, hot]]] = run(tmp_path / "out/net.pte", [[("forward", [values])]], tmp_path)
    expected = torch.bucketize(values, ends, right=True)
    torch.testing.assert_close(later, expected)
    torch.testing.assert_close(small, torch.bucketize(values, ends, out_int32=True))
    torch.testing.assert_close(hot, torch.nn.functional.one_hot(expected, 5).sum(1))
