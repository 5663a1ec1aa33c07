"""The report, `inspect` and `diff` name the weights that each blob is made of, however the methods were lowered."""

from __future__ import annotations

import json
import re

import pytest

from etbuild.cli import main

from .conftest import Build, Outcome

MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(64, 32)
        self.hidden = torch.nn.Linear(32, 64, bias=False)
        self.same = torch.nn.Linear(32, 64, bias=False)
        self.head = torch.nn.Linear(32, 64, bias=False)
        self.head.weight = self.table.weight
        self.stem = torch.nn.Conv2d(3, 8, 3, bias=False)
        self.norm = torch.nn.BatchNorm2d(8)
        with torch.no_grad():
            self.same.weight.copy_(self.hidden.weight)
            self.norm.running_mean.fill_(0.5)

    def words(self, tokens):
        x = self.table(tokens)
        return self.head(x) + self.hidden(x)

    def image(self, pixels):
        return self.norm(self.stem(pixels))

    def both(self, x):
        return self.hidden(x) * self.same(x)

def create():
    return Net()
"""
MANIFEST = """
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
defaults: {partitioners: [xnnpack]}
methods:
  words: {example_inputs: [{shape: [1, 4], dtype: int64}]}
  image: {example_inputs: [{shape: [1, 3, 8, 8]}]}
  both: {example_inputs: [{shape: [1, 32]}]}
tests: {methods: {words: {ranges: [[0, 63]]}}}
"""
STEM = ["stem.weight", "norm.bias", "norm.running_mean", "norm.running_var", "norm.weight"]
BIAS = ["norm.bias", "norm.running_mean", "norm.running_var", "norm.weight", "stem.weight"]
QUANTIZED = """
  quantize: {torchao: [{config: int4, group_size: 32, layers: [embedding]}, {config: 8da4w, group_size: 32}]}
"""


def names(outcome: Outcome) -> list[tuple[int, list[str]]]:
    """The size in bytes of each blob of named data and of each constant, and its names."""
    content = json.loads(outcome.read("net.report.json"))
    sizes, known = content["bytes"], content["blob_weights"]
    blobs = [(size, known["named_data"][key]) for key, size in sizes["named_data"].items()]
    return sorted([*blobs, *zip(sizes["constants"], known["constants"], strict=True)])


@pytest.mark.parametrize("option", [(), ("--no-accelerate",)], ids=["templates", "together"])
def test_a_blob_has_the_names_of_what_it_is_made_of(build: Build, option: tuple[str, ...]) -> None:
    """Two equal weights have one blob. A convolution with a folded BatchNorm is made of all of its weights."""
    found = names(build(MANIFEST, *option, model=MODEL))
    tied = [(8192, ["head.weight"])] * 2  # of a delegate and of the embedding; PyTorch exports the weight with one name
    assert [each for each in found if "num_batches_tracked" not in str(each)] == [
        *[(32, BIAS), (32, ["norm.running_mean"]), (32, ["norm.running_var"]), (864, STEM)],
        *[*tied, (8192, ["hidden.weight", "same.weight"])],
    ]


def test_packed_weights_and_their_scales_have_names(build: Build) -> None:
    """Also the packed table of an embedding, which no backend takes."""
    manifest = MANIFEST.replace(
        "defaults: {partitioners: [xnnpack]}", f"defaults:\n  partitioners: [xnnpack]{QUANTIZED}"
    )
    found = names(build(manifest, model=MODEL.replace("self.head.weight = self.table.weight", "")))
    integers, scales = "parametrizations.weight.original0", "parametrizations.weight.original1"
    assert [each for each in found if "norm" not in str(each)] == [
        (128, [f"head.{scales}"]),
        (128, [f"hidden.{scales}", f"same.{scales}"]),
        (256, [f"table.{scales}"]),
        (1024, [f"head.{integers}"]),
        (1024, [f"hidden.{integers}", f"same.{integers}"]),
        (1024, [f"table.{integers}"]),
    ]


def test_inspect_and_diff_name_blobs(build: Build, capfd: pytest.CaptureFixture[str]) -> None:
    """They need the report beside the file. The blobs of other weights are compared by name."""
    tagged = MANIFEST + 'named_data: {weights: {parameters: ["*"]}}\n'
    before = build(tagged, model=MODEL).directory
    after = build(tagged, model=MODEL.replace("fill_(0.5)", "fill_(0.25)")).directory
    capfd.readouterr()
    assert main.main(["inspect", str(after / "net.weights.ptd")]) == 0
    listed = capfd.readouterr().out
    assert re.search(r"\n *stem\.weight and 4 more [0-9a-f]{64} ", listed)
    assert re.search(r"\n *head\.weight [0-9a-f]{64} ", listed)
    assert main.main(["diff", str(before), str(after)]) == 0
    assert "named data `weights`: 1 blob with other content, 32 B: norm.bias and 4 more" in capfd.readouterr().out
    (after / "net.report.json").unlink()
    assert main.main(["inspect", str(after / "net.weights.ptd")]) == 0
    assert "and 4 more" not in capfd.readouterr().out
