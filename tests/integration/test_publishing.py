"""Programs for kinds of applications, what their inputs mean, and what is published of them: with real builds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from etbuild import json_schema
from etbuild.cli import main

MODEL = """\
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.head = torch.nn.Linear(4, 2)

    def forward(self, image):
        return torch.softmax(self.head(self.conv(image).mean((2, 3))), 1)


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.zeros(1, 4))

    def forward(self, x):
        self.state.add_(x)
        return self.state * 2

    def read(self, x):
        return self.state + x


class Ids(torch.nn.Module):
    def forward(self, scores):
        return scores > 0, scores.argmax(1)
"""
NET = """\
schema: executorch-model/v1
name: net
model: {factory: "model:Net"}
defaults: {partitioners: [xnnpack]}
methods: {forward: {example_inputs: [{shape: [1, 3, 8, 8]}]}}
for: [ios, android]
metadata:
  version: "1.0"
  license: MIT
  inputs: [{name: image, layout: nchw, colors: rgb, range: [0, 1]}]
  outputs: [{name: scores, labels: [cat, dog]}]
variants:
  portable: {defaults: {partitioners: []}, for: bare-metal}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


def build(project: Path, manifest: str, *options: str) -> int:
    (project / "net.yaml").write_text(manifest)
    cache = ("--cache-dir", str(project / "cache"))
    return main.main(["build", str(project / "net.yaml"), "-o", str(project / "out"), *cache, *options])


def test_a_program_for_applications_its_card_and_its_catalog(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert build(project, NET, "--variant", "all") == 0
    assert "note:" not in capfd.readouterr().err
    out = project / "out"
    index = json.loads((out / "net.index.json").read_text())
    report = json.loads((out / "net.report.json").read_text())
    assert index["interface"]["forward"]["outputs"][0]["labels"] == ["cat", "dog"]
    assert index["interface"] == report["interface"]
    assert report["applications"]["ios"]["links"] == ["backend_xnnpack", "kernels_optimized"]
    portable = json.loads((out / "net.portable.report.json").read_text())
    assert portable["applications"]["bare-metal"]["links"] == ["portable_ops_lib"]
    assert main.main(["card", str(out)]) == 0
    card = (out / "README.md").read_text()
    assert "| `net` | ios | ExecuTorch's frameworks for Apple's systems | 1.5 | backend_xnnpack" in card
    assert "Labels of `scores`: 0 cat, 1 dog." in card
    capfd.readouterr()
    assert main.main(["catalog", str(out), "--base-url", "https://example.com"]) == 0
    catalog = json.loads(capfd.readouterr().out)
    assert json_schema.problems("catalog", catalog) == []
    assert [program["name"] for program in catalog["programs"]] == ["net", "net.portable"]


def test_a_wrong_description_is_found_without_lowering_again(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert build(project, NET.replace("[cat, dog]", "[cat, dog, bird]")) == 3
    said = capfd.readouterr().err
    assert "net.yaml:11:" in said
    assert "metadata.outputs[0].labels: 3 labels for 2 values" in said
    assert build(project, NET) == 0


def test_what_an_application_cannot_load(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The places are those of what is wrong, and not of `for`."""
    named = NET + 'named_data: {weights: {parameters: ["*"]}}\n'
    assert build(project, named) == 2
    said = capfd.readouterr().err
    assert "net.yaml:14:14: named_data.weights: `for: android`" in said
    assert "takes no .ptd file" in said
    ids = NET.partition("metadata:")[0].replace("model:Net", "model:Ids").replace("3, 8, 8", "3")
    assert build(project, ids) == 3
    said = capfd.readouterr().err
    assert "net.yaml:5:" in said
    assert "cannot take output 0 of `forward`: it is a tensor of bool" in said


def test_shared_buffers_are_refused_only_where_methods_have_them(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    two = """\
schema: executorch-model/v1
name: net
model: {factory: "model:Counter"}
methods:
  forward: {example_inputs: [{shape: [1, 4]}]}
  read: {example_inputs: [{shape: [1, 4]}]}
share_mutable_buffers: true
for: [ios]
"""
    assert build(project, two) == 3
    said = capfd.readouterr().err
    assert "net.yaml:7:24: share_mutable_buffers: `for: ios`: forward and read share buffers" in said
    assert build(project, two.replace("[ios]", "[wheel]")) == 0
    one = two.replace("  read: {example_inputs: [{shape: [1, 4]}]}\n", "")
    assert build(project, one) == 0


def test_react_native_takes_its_schema_and_texts(project: Path) -> None:
    texts = 'constant_methods: {get_model_schema: {schema: react-native-executorch}, get_labels: "[1]"}\n'
    assert (
        build(project, NET.replace("[ios, android]", "[react-native-executorch]").partition("variants:")[0] + texts)
        == 0
    )
    assert (project / "out" / "net.pte").exists()
