"""Quantizers are confined to floating-point numbers, and to the operators and submodules that their options name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e

from etbuild import backends
from etbuild.backends import QuantizerContext
from etbuild.errors import BuildError, InputError
from etplugins.edges.facts import operator_name
from etplugins.quantize.confined import Limits, confine, forget_kinds
from tests.helpers.runtime import run

from .conftest import Build

CONTEXT = QuantizerContext(False, lambda reference: None)
BACKENDS: dict[str, dict[str, Any]] = {
    "xnnpack": {},
    "cortex-m": {},
    "ethos-u": {"target": "ethos-u55-128"},
    "tosa": {},
    "openvino": {},
    "vulkan": {},
}


class Net(nn.Module):
    """Convolutions in two submodules, a sum of both, a concatenation, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU())
        self.head = nn.Linear(8 * 16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = self.first(x)
        two = self.second(one + x)
        return self.head(torch.cat([one, two], dim=1).flatten(1))


def observed(module: nn.Module, inputs: tuple[Any, ...], backend: str, options: dict[str, Any]) -> dict[str, list[str]]:
    """The operators whose inputs or outputs are observed, each with the submodules that call it."""
    own = {**BACKENDS.get(backend, {}), **options}
    made = backends.get(backend).create_quantizer({k: v for k, v in own.items() if k != "operators"}, CONTEXT)
    graph = torch.export.export(module.eval(), inputs).module(check_guards=False)
    prepared = prepare_pt2e(graph, confine(made, Limits.of_options(own, ("options",))))
    forget_kinds(prepared)
    prepared(*inputs)
    found: dict[str, list[str]] = {}
    for node in prepared.graph.nodes:
        noted = node.meta.get("quantization_annotation")
        if node.op == "call_function" and noted and (noted.input_qspec_map or noted.output_qspec):
            stack = [*node.meta.get("nn_module_stack", {}).values()]
            found.setdefault(operator_name(node), []).append(stack[-1][0] if stack else "")
    return found


IMAGE = (torch.rand(1, 4, 4, 4, generator=torch.Generator().manual_seed(0)).to(memory_format=torch.channels_last),)


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_the_named_operators(backend: str) -> None:
    assert observed(Net(), IMAGE, backend, {"operators": ["linear"]}).keys() <= {"linear", "flatten"}
    if backend != "vulkan":  # it takes linear layers only
        found = observed(Net(), IMAGE, backend, {"operators": ["conv2d"]})
        assert "conv2d" in found
        assert not found.keys() & {"linear", "add", "cat"}


def test_modules_confine_sums_and_concatenations() -> None:
    found = observed(Net(), IMAGE, "xnnpack", {"modules": ["first"]})
    assert found == {"conv2d": ["first.0"], "relu": ["first.1"]}
    left = observed(Net(), IMAGE, "xnnpack", {"leave_out": ["second", "head"]})
    assert {"add", "cat", "conv2d"} <= left.keys()
    assert left["conv2d"] == ["first.0"]
    assert "linear" not in left


class Grid(nn.Module):
    """A convolution, beside integers that are joined, multiplied and added, as in the heads of detectors."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.arange(4).view(4, 1).expand(4, 4)
        grid = torch.cat([rows.reshape(1, 1, 4, 4), rows.t().reshape(1, 1, 4, 4)], 1)
        places = grid * torch.tensor(2) + torch.tensor(1)
        return self.conv(x) + places.to(torch.float32)


@pytest.mark.parametrize("backend", ["xnnpack", "cortex-m", "tosa"])
def test_integers_are_not_observed(backend: str) -> None:
    inputs = (torch.rand(1, 3, 4, 4).to(memory_format=torch.channels_last),)
    found = observed(Grid(), inputs, backend, {})
    assert "conv2d" in found


MODEL = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.act, self.head = nn.Conv2d(3, 8, 3), nn.PReLU(), nn.Linear(8 * 36, 10)

    def forward(self, x):
        return self.head(self.act(self.conv(x)).flatten(1))

def create():
    return Net()

def batches():
    return [(torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(n)),) for n in range(4)]
"""
MANIFEST = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
methods:
  forward:
    example_inputs: [{factory: "model:image"}]
    partitioners: [PARTITIONER]
    quantize: QUANTIZE
"""
QUANTIZE = '{pt2e: {quantizers: [{backend: xnnpack, options: OPTIONS}], calibration: {factory: "model:batches"}}}'


def manifest(options: str | None = None, partitioner: str = "xnnpack") -> str:
    quantize = "null" if options is None else QUANTIZE.replace("OPTIONS", options)
    text = MANIFEST.replace("PARTITIONER", partitioner).replace("QUANTIZE", quantize)
    return text.replace('{factory: "model:image"}', "{shape: [1, 3, 8, 8], fill: 0.5}")


def quantized(made: Any) -> dict[str, Any]:
    assert made.code == 0, made.err
    found: dict[str, Any] = json.loads(made.read("net.report.json"))["quantization"]
    return found


def test_a_program_with_one_kind_of_operators(build: Build, tmp_path: Path) -> None:
    only = quantized(build(manifest("{operators: [linear]}"), model=MODEL))
    assert [row["weights"] for row in only["in_floats"]] == ["conv.weight"]
    made = build(manifest("{operators: [conv2d]}"), model=MODEL)
    assert [row["weights"] for row in quantized(made)["in_floats"]] == ["head.weight"]
    (((actual,),),) = run(made.directory / "net.pte", [[("forward", [torch.full((1, 3, 8, 8), 0.5)])]], tmp_path)
    scope: dict[str, Any] = {}
    exec(MODEL, scope)
    torch.testing.assert_close(actual, scope["create"]()(torch.full((1, 3, 8, 8), 0.5)), rtol=0, atol=0.05)


def test_two_quantizers_for_two_kinds(build: Build) -> None:
    both = (
        "{pt2e: {quantizers: [{backend: xnnpack, options: {operators: [linear], dynamic: true, per_channel: true}}, "
        '{backend: xnnpack, options: {operators: [conv2d]}}], calibration: {factory: "model:batches"}}}'
    )
    found = quantized(build(manifest("{}").replace(QUANTIZE.replace("OPTIONS", "{}"), both), model=MODEL))
    assert (found["weights"], found["quantized"]) == (2, 2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("{operators: [conv2]}", "PyTorch has no operator `conv2`\n    did you mean `conv2d`?"),
        ("{operators: [prelu]}", "the quantizer does not take `prelu`"),
        ("{operators: [conv3d]}", "the method has none of these operators"),
        ("{operators: [Conv2d]}", "Conv2d"),
        ("{operators: []}", "operators"),
    ],
)
def test_operators_that_select_nothing(options: str, said: str, build: Build) -> None:
    made = build(manifest(options), model=MODEL)
    assert made.code in (1, 2)
    assert said.splitlines()[0] in made.err
    assert "Traceback" not in made.err


def test_kinds_of_operators_that_xnnpack_does_not_get(build: Build) -> None:
    made = build(manifest(), model=MODEL)
    assert "prelu" not in json.dumps(
        json.loads(made.read("net.report.json"))["methods"]["forward"]["operators"]["fallback"]
    )
    made = build(manifest(partitioner="{backend: xnnpack, options: {leave_out_configs: [PreluConfig]}}"), model=MODEL)
    assert made.code == 0, made.err
    operators = json.loads(made.read("net.report.json"))["methods"]["forward"]["operators"]
    assert not any("prelu" in name for name in operators["delegated"]["XnnpackBackend"])
    assert operators["delegated"]["XnnpackBackend"], "the others are delegated"
    wrong = build(manifest(partitioner="{backend: xnnpack, options: {leave_out_configs: [PReluConfig]}}"), model=MODEL)
    assert wrong.code == 2
    assert "did you mean `PreluConfig`?" in wrong.err
    options = "{configs: [PreluConfig], leave_out_configs: [PreluConfig]}"
    nothing = build(manifest(partitioner=f"{{backend: xnnpack, options: {options}}}"), model=MODEL)
    assert nothing.code == 2
    assert "nothing would be delegated" in nothing.err


def test_errors_are_those_of_users() -> None:
    with pytest.raises(InputError, match="no operator `convd`"):
        observed(Net(), IMAGE, "xnnpack", {"operators": ["convd"]})
    with pytest.raises(BuildError, match="none of these operators"):
        observed(Net(), IMAGE, "xnnpack", {"operators": ["conv3d"]})


NUMBERS = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.table = nn.Conv2d(3, 2, 1), nn.Embedding(9, 2)

    def forward(self, x):
        places = torch.arange(4) * 2 + 1
        near = x[:, 0, 0] > 0.25
        return self.conv(x) + self.table(places).T.reshape(1, 2, 1, 4), places - 1, near * 3 + 1

def create():
    return Net()

def batches():
    return [(torch.rand(1, 3, 4, 4, generator=torch.Generator().manual_seed(n)),) for n in range(4)]
"""


def test_integers_keep_the_numbers_that_they_are_added_to(build: Build, tmp_path: Path) -> None:
    """XNNPACK's quantizer makes a tensor of float32 of each number."""
    made = build(manifest("{}").replace("[1, 3, 8, 8]", "[1, 3, 4, 4]"), model=NUMBERS)
    assert quantized(made)["quantized"] > 0
    image = torch.full((1, 3, 4, 4), 0.5)
    ((actual,),) = run(made.directory / "net.pte", [[("forward", [image])]], tmp_path)
    scope: dict[str, Any] = {}
    exec(NUMBERS, scope)
    expected = scope["create"]()(image)
    assert [each.dtype for each in actual] == [torch.float32, torch.int64, torch.int64]
    torch.testing.assert_close(actual[0], expected[0], rtol=0, atol=0.05)
    assert all(torch.equal(one, other) for one, other in zip(actual[1:], expected[1:], strict=True))
