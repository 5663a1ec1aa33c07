"""`etbuild tune` tries the schemes that fit, and says which are worth it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from etbuild import json_schema
from etbuild.cli import main

MODEL = """\
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(3, 32, 3)
        self.head = torch.nn.Linear(128, 64)

    def forward(self, x):
        return self.head(self.conv(x).relu().mean((2, 3)).repeat(1, 4))


def create():
    return Net()
"""
MANIFEST = """\
# What the head says.
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
defaults: {partitioners: [xnnpack]}  # of all
methods: {forward: {example_inputs: [{shape: [1, 3, 16, 16]}]}}
checks: {max_program_bytes: 10}
"""


@pytest.fixture
def tune(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Any:
    """Tunes the manifest with options. Returns what it prints."""
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "net.yaml").write_text(MANIFEST)

    def run(*options: str, expect: int = 0) -> tuple[str, str]:
        capfd.readouterr()
        code = main.main(["tune", str(tmp_path / "net.yaml"), "--cache-dir", str(tmp_path / "cache"), *options])
        captured = capfd.readouterr()
        assert code == expect, captured.out + captured.err
        return captured.out, captured.err

    return run


def test_each_scheme_is_a_row(tune: Any, tmp_path: Path) -> None:
    (tmp_path / "net.yaml").write_text(MANIFEST.replace("max_program_bytes: 10", "finite: true"))
    found = json.loads(tune("--json", "--no-latency")[0])
    assert not json_schema.problems("tuning", found)
    trials = {each["scheme"]: each for each in found["trials"]}
    schemes = {"float32", "float16", "int8", "int8-per-tensor", "int8-dynamic", "8da8w", "8da4w", "int8-weights"}
    assert schemes <= trials.keys()
    assert all((each["size"] is None) == bool(each["reason"]) for each in trials.values()), trials
    assert all(trials[name]["size"] for name in ("float32", "int8", "8da8w")), trials
    assert trials["float32"]["variant"] == {}
    assert trials["float32"]["agreement"]["sqnr"]["mean"] > 90
    assert 10 < trials["int8"]["agreement"]["sqnr"]["mean"] < 60
    assert trials["int8"]["size"] < trials["float32"]["size"]
    assert trials["float32"]["best"]
    assert any(each["best"] for name, each in trials.items() if name != "float32")
    assert all(each["latency"] is None for each in trials.values())


def test_the_best_schemes_become_variants_and_comments_stay(tune: Any, tmp_path: Path) -> None:
    drawn = ["--svg", str(tmp_path / "a.svg"), "--html", str(tmp_path / "a.html")]
    shown, _ = tune("--only", "8da8w", "--no-latency", *drawn)
    table, _, lines = shown.partition("As variants of the manifest:\n\n")
    assert "8da8w *" in table
    quantize = {"torchao": [{"config": "8da8w"}]}
    assert yaml.safe_load(lines) == {"variants": {"8da8w": {"defaults": {"quantize": quantize}}}}
    assert "<circle" in (tmp_path / "a.svg").read_text()
    assert "8da8w" in (tmp_path / "a.html").read_text()
    manifest = tmp_path / "net.yaml"
    assert "8da8w" in tune("--only", "8da8w", "--no-latency", "--write")[1]
    assert manifest.read_text() == MANIFEST + lines
    again = tune("--only", "8da8w", "--no-latency", "--write")[1]
    assert "has these variants already" in again
    with_more = MANIFEST + "variants:\n    # Ours.\n    other: {report: {operators: false}}\n"
    manifest.write_text(with_more)
    tune("--only", "8da8w", "--no-latency", "--write")
    added = "    8da8w: {defaults: {quantize: {torchao: [{config: 8da8w}]}}}\n"
    assert manifest.read_text() == with_more.replace("variants:\n", f"variants:\n{added}")
    in_flow = MANIFEST + "variants: {other: {report: {operators: false}}}\n"
    manifest.write_text(in_flow)
    assert "its text leaves no place for variants" in tune("--only", "8da8w", "--no-latency", "--write", expect=2)[1]
    assert manifest.read_text() == in_flow


def test_a_quantized_manifest_is_compared_with_float32(tune: Any, tmp_path: Path) -> None:
    own = MANIFEST.replace(
        "[xnnpack]}", "[xnnpack], quantize: {pt2e: {quantizers: [xnnpack], calibration: example_inputs}}}"
    )
    (tmp_path / "net.yaml").write_text(own)
    only = ["--only", "8da4w", "--only", "int8-per-tensor"]
    found = json.loads(tune("--json", "--no-latency", *only)[0])
    trials = {each["scheme"]: each for each in found["trials"]}
    assert trials["float32"]["variant"] == {"defaults": {"quantize": None}}
    assert trials["int8-per-tensor"]["variant"] == {}
    assert trials["8da4w"]["variant"] == {"defaults": {"quantize": {"pt2e": None, "torchao": [{"config": "8da4w"}]}}}


def test_times_are_measured(tune: Any) -> None:
    found = json.loads(tune("--json", "--only", "8da8w", "--seconds", "0.05")[0])
    assert all(each["latency"] > 0 for each in found["trials"])


def test_a_scheme_that_fails_is_a_row_with_its_reason(tune: Any, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL.replace("self.head(", "(").replace("torch.nn.Linear(128, 64)", "None"))
    shown, _ = tune("--only", "8da4w", "--no-latency")
    row = next(line for line in shown.splitlines() if line.startswith("8da4w"))
    assert len(row.split("  ")[-1]) > 10, row


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--only", "int7"], "no such scheme fits this manifest"),
        (["--write", "--set", "a=1"], "--write does not go with --set"),
    ],
)
def test_a_mistake_is_named(tune: Any, options: list[str], message: str) -> None:
    assert message in tune(*options, expect=2)[1]
