"""Variants of one manifest, built in one command: they share an export, and each has its own artifacts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from etbuild.cli import main
from etkit import find_index
from tests.helpers.runtime import run

MODEL = """\
import torch

class Net(torch.nn.Module):
    def __init__(self, layers, dim):
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(dim, dim) for _ in range(layers)))

    def forward(self, x):
        return self.layers(x).relu()

def create(layers, dim=32):
    return Net(layers, dim)
"""
MANIFEST = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create", kwargs: {layers: {parameter: layers}}}
parameters: {layers: {type: int, default: 2, min: 1}}
defaults: {partitioners: [xnnpack]}
methods: {forward: {example_inputs: [{shape: [1, 32]}]}}
named_data: {weights: {parameters: ["*"]}}
variants:
  plain: {defaults: {partitioners: [portable]}}
  apple: {defaults: {partitioners: [coreml]}, named_data: null}
  int4: {defaults: {quantize: {torchao: [{config: 8da4w}]}}}
"""
EXPORTS = {"net": "run", "net.plain": "cached", "net.apple": "cached", "net.int4": "run"}


@pytest.fixture
def build(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Any:
    """Builds the manifest with options, and returns what `--json` prints."""
    (tmp_path / "net.yaml").write_text(MANIFEST)
    (tmp_path / "model.py").write_text(MODEL)

    def run_build(*options: str, expect: int = 0) -> Any:
        where = ["--cache-dir", str(tmp_path / "cache"), "-o", str(tmp_path / "out")]
        capfd.readouterr()
        assert main.main(["build", str(tmp_path / "net.yaml"), *where, "--json", *options]) == expect
        captured = capfd.readouterr()
        return json.loads(captured.out) if expect == 0 else captured.err

    return run_build


def test_all_variants_share_one_export_where_their_graphs_are_equal(build: Any, tmp_path: Path) -> None:
    made = build("--variant", "all")
    assert {each["name"]: each["steps"]["export"] for each in made} == EXPORTS
    out = tmp_path / "out"
    assert {path.name for path in out.glob("*.pt*")} == {
        "net.pte",
        "net.weights.ptd",
        "net.plain.pte",
        "net.plain.weights.ptd",
        "net.apple.pte",
        "net.int4.pte",
        "net.int4.weights.ptd",
    }
    for name in EXPORTS:
        index = json.loads((out / f"{name}.index.json").read_text())
        assert index["name"] == name
        assert find_index.read_index(out / f"{name}.pte")[1] == index
    assert find_index.read_index(out / "net.plain.weights.ptd")[1]["name"] == "net.plain"
    x = torch.linspace(-1, 1, 32).reshape(1, 32)
    outputs = [run(out / f"{name}.pte", [[("forward", [x])]], tmp_path)[0][0][0] for name in ("net", "net.plain")]
    torch.testing.assert_close(*outputs)

    again = build("--variant", "plain", "--variant", "int4")
    assert [(each["name"], each["steps"]) for each in again] == [
        ("net.plain", {"program": "cached"}),
        ("net.int4", {"program": "cached"}),
    ]
    assert build("--variant", "plain")["steps"] == {"program": "cached"}  # one program: no list, as without variants


def test_a_variant_has_the_bytes_of_a_manifest_that_says_the_same(build: Any, tmp_path: Path) -> None:
    build("--variant", "plain")
    own = tmp_path / "own"
    own.mkdir()
    shutil.copy(tmp_path / "model.py", own)
    text = MANIFEST.partition("variants:")[0].replace("[xnnpack]", "[portable]")
    (own / "net.yaml").write_text(text)
    assert main.main(["build", str(own / "net.yaml"), "--no-cache", "-o", str(own)]) == 0
    for suffix in ("pte", "weights.ptd"):
        assert (own / f"net.{suffix}").read_bytes() == (tmp_path / f"out/net.plain.{suffix}").read_bytes()


def test_a_parameter_changes_the_program(build: Any, tmp_path: Path) -> None:
    build("--variant", "apple", "--set", "layers=1")
    operators = json.loads((tmp_path / "out/net.apple.report.json").read_text())["methods"]["forward"]["operators"]
    assert operators["delegated"]["CoreMLBackend"]["aten::linear"] == 1


def test_an_error_in_a_build_names_the_program_and_the_line_of_the_variant(build: Any, tmp_path: Path) -> None:
    text = MANIFEST + "  broken: {methods: {forward: {entry: no_such}}}\n"
    (tmp_path / "net.yaml").write_text(text)
    said = build("--variant", "plain", "--variant", "broken", expect=2)
    assert f"net.yaml:{text.count(chr(10))}:39: methods.forward.entry" in said
    assert "(in the program net.broken)" in said


def test_stages_are_those_of_one_program(build: Any) -> None:
    said = build("--variant", "all", "--stop-after", "export", expect=2)
    assert "--stop-after writes the stages of one program: name one variant" in said


def test_what_a_variant_no_longer_makes_is_removed(build: Any, tmp_path: Path) -> None:
    build("--variant", "plain")
    (tmp_path / "net.yaml").write_text(MANIFEST.replace("plain: {", "plain: {named_data: null, "))
    build("--variant", "plain")
    assert not (tmp_path / "out/net.plain.weights.ptd").exists()
