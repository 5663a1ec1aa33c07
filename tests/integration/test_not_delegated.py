"""What reports and messages say about operators that no backend took, and about weights that are left in floats."""

from __future__ import annotations

import re

import pytest
import torch
from safetensors.torch import save

from etbuild.cli import main

from .conftest import Build

MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(8, 32)
        self.conv = nn.Conv1d(32, 32, 5, padding=2)
        self.attention = nn.MultiheadAttention(32, 2)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 8)

    def forward(self, tokens):
        x = self.conv(self.embed(tokens).T).T
        x = self.attention(x, x, x, need_weights=False)[0]
        return self.head(self.norm(x).mean(0, keepdim=True))


def create():
    torch.manual_seed(0)
    return Net().eval()
"""
MANIFEST = """
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
defaults: {partitioners: [xnnpack]}
methods:
  forward:
    example_inputs: [{shape: [16], dtype: int64}]
"""
MEAN = "mean.dim only supports averaging 4D tensors, got tensor of rank 2"
NO_RULE = "XnnpackBackend has no rule for it"


FLOATS = (
    "`quantize` quantized 1 of 5 weights of 2 or more dimensions; 37,888 of 39,112 bytes are left in floats",
    "`conv.weight` (20,480 bytes): "
    "`aten::convolution` reads it, and torchao quantizes linear layers and embeddings only",
    "`attention.in_proj_weight` (12,288 bytes): `attention` reads it in code of its own",
    "`attention.out_proj.weight` (4,096 bytes): `attention` reads it in code of its own",
    "`embed.weight` (1,024 bytes): no entry of `torchao` with `layers: [embedding]` matches it",
)


def test_operators_that_no_backend_took_have_a_reason(build: Build, capfd: pytest.CaptureFixture[str]) -> None:
    made = build(MANIFEST, model=MODEL)
    method = made.json("net.report.json")["methods"]["forward"]
    rows = {row["operator"]: row for row in method["why_not"]}
    assert rows["aten::mean.dim"] == {"operator": "aten::mean.dim", "calls": 1, "layers": [], "why_not": MEAN}
    assert rows["aten::embedding"] == {
        "operator": "aten::embedding",
        "calls": 1,
        "layers": ["embed"],
        "why_not": NO_RULE,
    }
    assert "aten::native_layer_norm" not in rows
    for operator, row in rows.items():  # each stands for calls that are outside of all delegates
        assert row["calls"] <= method["operators"]["fallback"][operator]
    program = made.directory / "net.pte"
    assert main.main(["inspect", str(program)]) == 0
    assert f"\n    aten::embedding: 1 call in `embed`: {NO_RULE}\n" in capfd.readouterr().out
    program.with_name("net.report.json").write_text("{}", "utf-8")  # what the index does not list is not shown
    assert main.main(["inspect", str(program)]) == 0
    assert NO_RULE not in capfd.readouterr().out


def test_reasons_depend_on_no_place(build: Build) -> None:
    """Lines of sources stand in messages only: an edit that moves them changes no report."""
    first, moved = build(MANIFEST, model=MODEL), build(MANIFEST, model=f"# a comment{MODEL}")
    assert first.read("net.report.json") == moved.read("net.report.json")


def test_too_little_delegation_is_explained(build: Build) -> None:
    failed = build(f"{MANIFEST}checks: {{min_delegated: 1}}", model=MODEL)
    assert failed.code == 3
    said = rf"`aten::expand_copy` \(\d+ calls\): {NO_RULE}\n    at model.py:17, in forward: `x = self.attention\("
    assert re.search(said, failed.err)


def test_weights_left_in_floats_are_named(build: Build, capfd: pytest.CaptureFixture[str]) -> None:
    made = build(f"{MANIFEST}    quantize: {{torchao: [{{config: 8da8w}}]}}\n", model=MODEL)
    head, *rows = FLOATS
    assert f"note: {head}\n" in made.err
    assert all(f"\n    {row}\n" in made.err for row in rows)
    assert "`torch.nn.MultiheadAttention` calls no linear layers" in made.err
    assert made.json("net.report.json")["quantization"]["quantized"] == 1
    assert main.main(["inspect", str(made.directory / "net.pte")]) == 0
    assert capfd.readouterr().out.endswith("\n  ".join(FLOATS) + "\n")


@pytest.mark.parametrize("weights", ["", ", weights: [{file: net.safetensors}]"], ids=["made", "loaded"])
def test_nothing_is_noted_if_nothing_is_left(build: Build, weights: str) -> None:
    model = """
        import torch

        def create():
            torch.manual_seed(0)
            return torch.nn.Sequential(torch.nn.Embedding(8, 32), torch.nn.Linear(32, 32), torch.nn.LayerNorm(32))
        """
    quantize = "    quantize: {torchao: [{config: 8da8w}, {config: int4, layers: [embedding]}]}\n"
    state = {"0.weight": torch.rand(8, 32), "1.weight": torch.rand(32, 32)}
    state |= {name: torch.ones(32) for name in ("1.bias", "2.weight", "2.bias")}
    manifest = MANIFEST.replace('model:create"', f'model:create"{weights}') + quantize
    made = build(manifest, model=model, files={"net.safetensors": save(state)})
    assert made.code == 0, made.err
    found = made.json("net.report.json")["quantization"]
    assert (found["weights"], found["quantized"], found["in_floats"]) == (2, 2, [])
    assert "left in floats" not in made.err


def test_what_pt2e_leaves_out_is_named(build: Build) -> None:
    model = """
        import torch

        def create():
            torch.manual_seed(0)
            return torch.nn.Sequential(torch.nn.Conv1d(4, 4, 3), torch.nn.Flatten(), torch.nn.Linear(24, 16))
        """
    quantizer = "{backend: xnnpack, options: {per_channel: true, leave_out: ['2']}}"
    manifest = MANIFEST.replace("{shape: [16], dtype: int64}", "{shape: [1, 4, 8]}")
    quantize = f"    quantize: {{pt2e: {{quantizers: [{quantizer}], calibration: example_inputs}}}}\n"
    made = build(manifest + quantize, model=model)
    assert made.code == 0, made.err
    found = made.json("net.report.json")["quantization"]
    row = {"weights": "*.weight", "count": 1, "bytes": 1536, "why": "no quantizer of `pt2e` took its `aten::linear`"}
    assert (found["weights"], found["quantized"], found["in_floats"]) == (2, 1, [row])
