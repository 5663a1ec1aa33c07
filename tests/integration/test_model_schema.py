"""The schema of all methods that react-native-executorch reads from a constant method."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from etbuild.cli import main
from etbuild.errors import BuildError
from etplugins.model_schema.react_native import described

MODEL = """\
import torch


class Net(torch.nn.Module):
    def encode(self, ids, mask):
        return torch.nn.functional.one_hot(ids, 8).float().mean(1), (ids * mask).sum()

    def forward(self, x):
        return x.unflatten(2, (-1, 2)).sum(3)
"""
MANIFEST = """\
schema: executorch-model/v1
name: net
model: {factory: "model:Net"}
methods:
  encode:
    example_inputs: [{shape: [1, 4], dtype: int64}, {shape: [1, 4], dtype: int64}]
    dynamic_shapes: [[null, {dim: seq, min: 2, max: 64}], [null, {dim: seq}]]
  forward:
    example_inputs: [{shape: [1, 2, 16]}]
    dynamic_shapes: [[null, null, {dim: length, min: 8, max: 128, multiple_of: 8}]]
constant_methods:
  get_model_schema: {schema: react-native-executorch}
  get_version: 3
"""


def build(project: Path, manifest: str) -> int:
    (project / "model.py").write_text(MODEL)
    (project / "net.yaml").write_text(manifest)
    return main.main(["build", str(project / "net.yaml"), "-o", str(project / "out"), "--no-cache"])


def constant(size: int) -> dict[str, Any]:
    return {"kind": "constant", "value": size}


def test_the_program_has_the_schema_of_its_methods(tmp_path: Path) -> None:
    import etbuild

    assert build(tmp_path, MANIFEST) == 0
    program = etbuild.open_program(tmp_path / "out" / "net.pte")
    (text,) = program.method("get_model_schema")()
    schema = json.loads(str(text))
    seq = {"kind": "range", "range": {"min": 2, "max": 64, "step": 1}}
    ids = {"kind": "Tensor", "dtype": "int64", "shape": [constant(1), seq]}
    assert schema["encode"] == {
        "inputs": [ids, ids],
        "outputs": [
            {"kind": "Tensor", "dtype": "float32", "shape": [constant(1), constant(8)]},
            {"kind": "Tensor", "dtype": "int64", "shape": []},
        ],
        "runtimeConstraints": [
            {
                "kind": "equality",
                "dims": [{"paramSide": "input", "tensorIdx": tensor, "dimIdx": 1} for tensor in (0, 1)],
            }
        ],
    }
    length = {"kind": "range", "range": {"min": 8, "max": 128, "step": 8}}
    half = {"kind": "range", "range": {"min": 4, "max": 64, "step": 4}}
    assert schema["forward"]["inputs"][0]["shape"] == [constant(1), constant(2), length]
    assert schema["forward"]["outputs"][0]["shape"] == [constant(1), constant(2), half]
    (given,) = program.signature("forward")["inputs"]
    assert "dtype" in given
    assert given["shape"] == [1, 2, 128], "the library compares the bounds"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("{schema: react-native}", "there is no form `react-native` of a schema"),
        ("{}", "write one of `factory` and `schema`"),
        ('{schema: react-native-executorch, factory: "m:f"}', "write one of `factory` and `schema`"),
    ],
)
def test_mistakes(written: str, expected: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert build(tmp_path, MANIFEST.replace("{schema: react-native-executorch}", written)) == 2
    assert expected in capfd.readouterr().err


def test_sizes_that_follow_from_others_and_dtypes_without_a_word() -> None:
    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x[:, :-1:2] + y

    size = torch.export.Dim("size", min=2, max=10)
    shapes = ({1: 2 * size + 1}, {1: size})
    program = torch.export.export(Net(), (torch.ones(1, 9), torch.ones(1, 4)), dynamic_shapes=shapes)
    spec = json.loads(described({"forward": program}, ()))["forward"]
    assert spec["inputs"][0]["shape"][1] == {"kind": "range", "range": {"min": 5, "max": 21, "step": 2}}
    assert spec["runtimeConstraints"] == [
        {
            "kind": "linear",
            "dimLhs": {"paramSide": "input", "tensorIdx": 0, "dimIdx": 1},
            "dimRhs": {"paramSide": "input", "tensorIdx": 1, "dimIdx": 1},
            "coefficients": [2, 1],
        }
    ]
    halves = torch.export.export(torch.nn.ReLU(), (torch.ones(2, dtype=torch.float16),))
    with pytest.raises(BuildError, match="cannot describe input 0 of `run`: it is a tensor of float16"):
        described({"run": halves}, ())


@pytest.mark.parametrize(
    ("code", "sizes"),
    [
        ("torch.nn.functional.max_pool1d(x, 2)", "16 to 16"),  # it fixes the factor to that of the example
        ("(torch._check(x.shape[2] >= 16), x + 1)[1]", "16 to 128"),
    ],
)
def test_a_multiple_that_tracing_narrows_is_an_error(
    code: str, sizes: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """PyTorch narrows only the factor."""
    narrow = MODEL.replace("x.unflatten(2, (-1, 2)).sum(3)", code)
    (tmp_path / "narrow.py").write_text(narrow)
    manifest = MANIFEST.replace("model:Net", "narrow:Net").partition("constant_methods:")[0]
    assert build(tmp_path, manifest) == 1
    assert "net.yaml:10:35: methods.forward.dynamic_shapes[0][2]" in (said := capfd.readouterr().err)
    assert f"the model accepts only sizes {sizes}" in said
