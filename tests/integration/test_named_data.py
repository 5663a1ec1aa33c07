"""The file of a tag depends only on the weights under the tag. The files of a program fit together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.helpers.runtime import run

from .conftest import Build, Outcome

MODEL = """\
import torch
from torch import nn

class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(16, 8)
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)

    def forward(self, tokens):
        x = self.table(tokens)
        return x + self.second(self.first(x).relu())

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        self.head = nn.Linear(8, 2)
        step = torch.arange(1, 1 + sum(p.numel() for p in self.parameters())) / 1024
        with torch.no_grad():
            for parameter, values in zip(self.parameters(), step.split([p.numel() for p in self.parameters()])):
                parameter.copy_(values.reshape(parameter.shape))

    def features(self, tokens):
        return self.backbone(tokens)

    def classify(self, tokens):
        return self.head(self.backbone(tokens))

def create():
    return Net()
"""

MANIFEST = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
defaults: {partitioners: [xnnpack]}
methods:
  classify: {example_inputs: [{shape: [1, 4], dtype: int64}]}
named_data:
  backbone: {parameters: ["backbone.*"]}
"""


def ptd(outcome: Outcome, name: str = "net") -> bytes:
    assert outcome.code == 0, outcome.err
    return outcome.read(f"{name}.backbone.ptd")


@pytest.fixture
def baseline(build: Build) -> bytes:
    return ptd(build(MANIFEST, model=MODEL))


def test_another_graph_has_the_same_file(build: Build, baseline: bytes) -> None:
    edited = MODEL.replace("self.first(x).relu()", "self.first(x * 2).tanh()").replace("x + self", "0.5 * x - self")
    other = build(MANIFEST, model=edited)
    assert ptd(other) == baseline


def test_weights_used_in_another_order_have_the_same_file(build: Build, baseline: bytes) -> None:
    edited = MODEL.replace("self.second(self.first(x).relu())", "self.first(self.second(x).relu())")
    assert ptd(build(MANIFEST, model=edited)) == baseline


def test_another_number_of_methods_has_the_same_file(build: Build, baseline: bytes) -> None:
    two = MANIFEST.replace("named_data", "  features: {example_inputs: [{shape: [2, 7], dtype: int64}]}\nnamed_data")
    outcome = build(two, model=MODEL)
    assert ptd(outcome) == baseline
    assert sorted(outcome.json("net.index.json")["methods"]) == ["classify", "features"]


def test_another_program_and_other_dynamic_shapes_have_the_same_file(build: Build, baseline: bytes) -> None:
    manifest = (
        MANIFEST.replace("name: net", "name: other")
        .replace("classify:", "run:")
        .replace("dtype: int64}]}", "dtype: int64}], entry: features, dynamic_shapes: [[null, {dim: n, max: 9}]]}")
    )
    assert ptd(build(manifest, model=MODEL), "other") == baseline


def test_a_weight_outside_the_tag_does_not_reach_the_file(build: Build, baseline: bytes) -> None:
    edited = MODEL.replace("return Net()", "net = Net()\n    net.head.weight.data += 1\n    return net")
    assert ptd(build(MANIFEST, model=edited)) == baseline


def test_a_weight_under_the_tag_changes_the_file(build: Build, baseline: bytes) -> None:
    edited = MODEL.replace("return Net()", "net = Net()\n    net.backbone.first.weight.data += 1\n    return net")
    assert ptd(build(MANIFEST, model=edited)) != baseline


def test_a_blob_that_tagged_and_untagged_weights_share_stays_with_the_tag(build: Build) -> None:
    """The head comes first in the graph and has the same zero bias. The file is still the same as without the head."""
    zero = "net.{}.bias.data = torch.zeros(8)\n    "
    model = MODEL.replace("nn.Linear(8, 2)", "nn.Linear(8, 8)").replace("self.head(self.backbone(tokens))", "BODY")
    model = model.replace("return Net()", f"net = Net()\n    {zero.format('backbone.first')}EDIT\n    return net")
    backbone_only = build(MANIFEST, model=model.replace("BODY", "self.backbone(tokens)").replace("EDIT", "pass"))
    shared = build(
        MANIFEST,
        model=model.replace(
            "BODY", "self.head(tokens.float()[..., None].expand(1, 4, 8)) + self.backbone(tokens)"
        ).replace("EDIT", zero.format("head")),
    )
    assert ptd(shared) == ptd(backbone_only)


def test_every_blob_is_in_one_place(build: Build) -> None:
    outcome = build(MANIFEST, model=MODEL)
    report = outcome.json("net.report.json")["bytes"]
    inside, outside = set(report["named_data"]), set(report["external"]["backbone"])
    assert inside
    assert outside
    assert not inside & outside
    assert "backbone.table.weight" in outside  # a portable operator reads it, by name


CNN = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1))
        self.norm = nn.BatchNorm2d(4)  # after a relu: XNNPACK makes a convolution of its own of it
        self.head = nn.Conv2d(4, 2, 1)
        self.backbone[1].running_mean += 0.25

    def forward(self, x):
        return self.head(self.norm(self.backbone(x).relu()))

def create():
    return Net()
"""


def test_folded_batch_norms_keep_the_tag(build: Build) -> None:
    manifest = MANIFEST.replace("classify: {example_inputs: [{shape: [1, 4], dtype: int64}]}", "forward: *m").replace(
        "*m", "{example_inputs: [{shape: [1, 3, 8, 8]}]}"
    )
    outcome = build(manifest, model=CNN)
    assert outcome.code == 0, outcome.err
    external = outcome.json("net.report.json")["bytes"]["external"]["backbone"]
    assert sorted(external.values(), reverse=True)[:2] == [4 * 3 * 3 * 3 * 4, 4 * 4 * 4]  # both convolutions, in bytes


def test_weights_of_two_owners_are_not_folded_into_one_file(build: Build) -> None:
    manifest = MANIFEST.replace("classify: {example_inputs: [{shape: [1, 4], dtype: int64}]}", "forward: *m").replace(
        "*m", "{example_inputs: [{shape: [1, 3, 8, 8]}]}"
    )
    outcome = build(manifest, model=CNN.replace("self.backbone(x).relu()", "self.backbone(x)"))
    assert outcome.code == 1
    assert "model.yaml:7:1: named_data: XNNPACK merges weights of different tags into one" in outcome.err
    assert "`backbone.3.weight` (backbone)" in outcome.err
    assert "`norm.running_mean` (no tag)" in outcome.err


def test_a_counter_that_nothing_reads_does_not_make_a_file(build: Build) -> None:
    manifest = MANIFEST.replace("classify: {example_inputs: [{shape: [1, 4], dtype: int64}]}", "forward: *m").replace(
        "*m", "{example_inputs: [{shape: [1, 3, 8, 8]}]}"
    )
    outcome = build(manifest.replace("backbone.*", "*.num_batches_tracked"), model=CNN)
    assert outcome.code == 1
    assert "no method reads a weight of this tag" in outcome.err


def test_equal_weights_of_two_tags_are_refused(build: Build) -> None:
    model = MODEL.replace("nn.Linear(8, 2)", "nn.Linear(8, 8)").replace(
        "return Net()",
        "net = Net()\n    net.head.bias.data.zero_()\n    net.backbone.first.bias.data.zero_()\n    return net",
    )
    outcome = build(MANIFEST + '  head: {parameters: ["head.*"]}\n', model=model)
    assert outcome.code == 1
    assert "the tags `backbone` and `head` have weights with the same content (32 bytes" in outcome.err
    assert build(MANIFEST + '  head: {parameters: ["head.weight"]}\n', model=model).code == 0


def test_tied_weights_have_the_tag_of_any_of_their_names(build: Build) -> None:
    model = MODEL.replace("nn.Linear(8, 2)", "nn.Linear(8, 16, bias=False)").replace(
        "return Net()", "net = Net()\n    net.head.weight = net.backbone.table.weight\n    return net"
    )
    outcome = build(MANIFEST.replace("backbone.*", "head.*"), model=model)
    assert outcome.code == 0, outcome.err
    assert 512 in outcome.json("net.report.json")["bytes"]["external"]["backbone"].values()


def test_two_tags_make_two_files(build: Build) -> None:
    outcome = build(MANIFEST + '  head: {parameters: ["head.*"]}\n', model=MODEL)
    assert outcome.code == 0, outcome.err
    index = outcome.json("net.index.json")
    assert sorted(index["named_data"]) == ["backbone", "head"]
    assert outcome.json("net.report.json")["bytes"]["named_data"] == {}
    assert index["named_data"]["head"] == next(a["sha256"] for a in index["artifacts"] if a.get("tag") == "head")


def test_a_tag_that_no_method_reads_is_refused(build: Build) -> None:
    manifest = MANIFEST.replace("classify:", "features:") + '  head: {parameters: ["head.*"]}\n'
    outcome = build(manifest, model=MODEL)
    assert outcome.code == 1
    assert "model.yaml:9:3: named_data.head: no method reads a weight of this tag" in outcome.err


def test_portable_weights_go_to_the_file_too(build: Build) -> None:
    outcome = build(MANIFEST.replace("[xnnpack]", "[]"), model=MODEL)
    external = outcome.json("net.report.json")["bytes"]["external"]["backbone"]
    assert {"backbone.table.weight", "backbone.first.weight", "backbone.second.bias"} <= external.keys()


def test_two_methods_share_their_weights(build: Build) -> None:
    big = MODEL.replace("nn.Linear(8, 8)", "nn.Linear(8, 8)").replace("Embedding(16, 8)", "Embedding(16, 8)")
    big = big.replace("(8, 8)", "(512, 512)").replace("(16, 8)", "(16, 512)").replace("(8, 2)", "(512, 2)")
    manifest = MANIFEST[: MANIFEST.index("named_data")]
    one = build(manifest, model=big)
    two = build(manifest + "  features: {example_inputs: [{shape: [1, 4], dtype: int64}]}\n", model=big)
    assert two.code == 0, two.err
    assert len(two.read("net.pte")) <= 1.01 * len(one.read("net.pte"))


def test_the_same_build_gives_the_same_bytes(build: Build) -> None:
    first, second = build(MANIFEST, model=MODEL), build(MANIFEST, model=MODEL)
    assert first.files == second.files == ["net.backbone.ptd", "net.index.json", "net.pte", "net.report.json"]
    assert [first.read(name) for name in first.files] == [second.read(name) for name in second.files]


def test_several_weights_files_make_one_state(build: Build, tmp_path: Path) -> None:
    import torch

    shapes = {"backbone.table.weight": (16, 8), "backbone.first.weight": (8, 8), "backbone.first.bias": (8,)}
    shapes |= {"backbone.second.weight": (8, 8), "backbone.second.bias": (8,)}
    save_file({name: torch.ones(shape) for name, shape in shapes.items()}, tmp_path / "backbone.safetensors")
    save_file({"head.weight": torch.ones(2, 8), "head.bias": torch.ones(2)}, tmp_path / "head.safetensors")
    manifest = MANIFEST.replace('"model:create"', '"model:create", weights: [backbone.safetensors, head.safetensors]')
    files = {f"{name}.safetensors": (tmp_path / f"{name}.safetensors").read_bytes() for name in ("backbone", "head")}
    outcome = build(manifest, model=MODEL, files=files)
    assert sorted(outcome.json("net.index.json")["inputs"]["data"]) == ["backbone.safetensors", "head.safetensors"]


VIEWED = """
import torch

class Viewed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(5, 2))
        self.register_buffer("index", torch.tensor([[0, 2], [4, 2]]))

    def forward(self, x):
        return self.table[self.index.view(-1)] + x, self.table.view(10) * 2

def create():
    return Viewed()
"""


@pytest.mark.parametrize("partitioners", ["", "xnnpack"])
def test_a_weight_may_be_read_in_another_shape(partitioners: str, build: Build, tmp_path: Path) -> None:
    manifest = f"""\
schema: executorch-model/v1
name: net
model: {{factory: "model:create", seed: 1}}
methods: {{forward: {{example_inputs: [{{shape: [4, 2]}}], partitioners: [{partitioners}]}}}}
named_data: {{weights: {{parameters: ["*"]}}}}
"""
    made = build(manifest, model=VIEWED)
    assert made.code == 0, made.err
    x, scope = torch.ones(4, 2), dict[str, Any]()
    exec(VIEWED, scope)
    torch.manual_seed(1)
    [[found]] = run(made.directory / "net.pte", [[("forward", [x])]], tmp_path)
    torch.testing.assert_close(found, [*scope["create"]()(x)], rtol=0, atol=0)
