"""Methods whose inputs and outputs are integers: their program, facts, comparison, tests and C++ class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from etbuild.cli import main
from tests.helpers.runtime import run

from .conftest import Build

MODEL = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.pool(self.body(x)).flatten(1))

def create():
    return Net()

def batches():
    return [(torch.rand(1, 1, 12, 8, generator=torch.Generator().manual_seed(n)) * 4 - 1,) for n in range(8)]

def sound():
    return batches()[0][0]

def mean(program, data):
    return float(program.method("forward")(sound())[0].mean())
"""
MANIFEST = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
defaults:
  partitioners: [BACKEND]
  quantize: {pt2e: {quantizers: [QUANTIZER], calibration: {factory: "model:batches"}}}
methods:
  forward: {example_inputs: [{factory: "model:sound"}], io: {inputs: int8, outputs: int8}}
checks: {min_sqnr: 15, metric: {factory: "model:mean", max_change: 0.1}}
tests: {methods: {forward: {random: 2, ranges: [[-1, 3]]}}}
"""


def manifest(backend: str, quantizer: str | None = None) -> str:
    return MANIFEST.replace("BACKEND", backend).replace("QUANTIZER", quantizer or backend)


def methods(made: Any) -> dict[str, Any]:
    assert made.code == 0, made.err
    found: dict[str, Any] = json.loads(made.read("net.report.json"))["methods"]["forward"]
    return found


def edges(made: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    assert made.code == 0, made.err
    (taken,), (given,) = json.loads(made.read("net.index.json"))["edges"]["forward"]
    assert taken["dtype"] == given["dtype"] == "int8"
    return taken, given


def in_floats(x: torch.Tensor) -> torch.Tensor:
    scope: dict[str, Any] = {}
    exec(MODEL, scope)
    result: torch.Tensor = scope["create"]().eval()(x)
    return result


def sound() -> torch.Tensor:
    scope: dict[str, Any] = {}
    exec(MODEL, scope)
    made: torch.Tensor = scope["sound"]()
    return made


def test_xnnpack_takes_and_returns_integers(build: Build, tmp_path: Path) -> None:
    made = build(manifest("xnnpack"), model=MODEL)
    facts = methods(made)
    assert [each["dtype"] for each in (*facts["inputs"], *facts["outputs"])] == ["int8", "int8"]
    taken, given = edges(made)
    assert "quantize_per_tensor" not in json.dumps(facts["operators"]["fallback"])
    with torch.no_grad():
        expected = in_floats(sound())
    integers = (sound() / taken["scale"]).round().add(taken["zero_point"]).clamp(-128, 127).to(torch.int8)
    (((actual,),),) = run(made.directory / "net.pte", [[("forward", [integers])]], tmp_path)
    assert actual.dtype == torch.int8
    numbers = (actual.float() - given["zero_point"]) * given["scale"]
    torch.testing.assert_close(numbers, expected, rtol=0, atol=0.05)
    assert "SQNR" in made.err, "the build compares with the float model"


def test_etbuild_test_quantizes_and_dequantizes(build: Build, capfd: pytest.CaptureFixture[str]) -> None:
    made = build(manifest("xnnpack"), model=MODEL)
    assert made.code == 0, made.err
    capfd.readouterr()
    code = main.main(["test", str(made.directory.parent / "model.yaml")])
    said = capfd.readouterr()
    assert code == 0, said.out + said.err
    assert "without quantization" in said.out


def test_only_inputs_or_only_outputs(build: Build) -> None:
    both = "io: {inputs: int8, outputs: int8}"
    facts = methods(build(manifest("xnnpack").replace(both, "io: {inputs: int8}"), model=MODEL))
    assert [facts[kind][0]["dtype"] for kind in ("inputs", "outputs")] == ["int8", "float32"]
    facts = methods(build(manifest("xnnpack").replace(both, "io: {outputs: int8}"), model=MODEL))
    assert [facts[kind][0]["dtype"] for kind in ("inputs", "outputs")] == ["float32", "int8"]


def test_cortex_m_is_smaller_by_its_edges(build: Build) -> None:
    made = build(manifest("cortex-m"), model=MODEL)
    facts = methods(made)
    names = facts["operators"]["fallback"].keys()
    assert {"cortex_m::quantized_conv2d", "cortex_m::quantized_linear"} <= names
    assert not any("quantize_per_tensor" in name or "convolution" in name for name in names)
    assert "SQNR" in made.err, "the exported method is compared with the float model"
    quantization = json.loads(made.read("net.report.json"))["quantization"]
    assert quantization["quantized"] == quantization["weights"]
    floats = build(manifest("cortex-m").replace(", io: {inputs: int8, outputs: int8}", ""), model=MODEL)
    assert floats.code == 0, floats.err
    assert len(made.read("net.pte")) < len(floats.read("net.pte"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("int8, outputs: int8", "uint8"), "input 0 is quantized to int8, not to uint8"),
        (("int8, outputs: int8", "int4"), "did you mean `int8`?"),
        (("{inputs: int8, outputs: int8}", "{}"), "io"),
        (("[QUANTIZER]", "[{backend: xnnpack, options: {operators: [linear]}}]"), "input 0 is not quantized: `conv2d`"),
        (("[QUANTIZER]", "[{backend: xnnpack, options: {operators: [conv2d]}}]"), "output 0 is not quantized"),
    ],
)
def test_edges_that_cannot_be_integers(change: tuple[str, str], said: str, build: Build) -> None:
    made = build(MANIFEST.replace(*change).replace("BACKEND", "xnnpack").replace("QUANTIZER", "xnnpack"), model=MODEL)
    assert made.code in (1, 2)
    assert said in made.err
    assert "Traceback" not in made.err


def test_a_method_in_floats_has_no_integers_at_its_edges(build: Build) -> None:
    text = manifest("xnnpack").replace("outputs: int8}", "outputs: int8}, quantize: null")
    made = build(text, model=MODEL)
    assert made.code == 2
    assert "`io` needs `quantize` with `pt2e` for the method `forward`" in made.err


def test_the_class_of_cpp_has_scales(build: Build, tmp_path: Path) -> None:
    made = build(manifest("xnnpack"), model=MODEL)
    taken, given = edges(made)
    assert main.main(["cpp", str(made.directory), "-o", str(tmp_path / "cpp")]) == 0
    header = (tmp_path / "cpp" / "net.h").read_text()
    for name, facts in (("forward_input0", taken), ("forward_output0", given)):
        assert f"static constexpr double {name}_scale = {json.dumps(facts['scale'])};" in header
        assert f"static constexpr int32_t {name}_zero_point = {facts['zero_point']};" in header
