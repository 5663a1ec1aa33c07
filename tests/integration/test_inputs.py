"""Inputs other than single tensors: lists, tuples, mappings, plain values and keywords, compared with eager PyTorch."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.runtime import Runtime

from etbuild.errors import InputError
from etbuild.quantize.calibration import Batches

from .conftest import Build, Outcome

MODEL = """\
import collections
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        with torch.no_grad():
            self.linear.weight.copy_(torch.arange(64.0).reshape(8, 8) / 64)
            self.linear.bias.copy_(torch.arange(8.0))

    def forward(self, pair, named, times, mode, nothing=None, *, scale, offset=None):
        first, (second, third) = pair
        x = self.linear(first) * times - second + third * scale
        if nothing is None and (mode is True or mode == "cos"):
            x = x.cos()
        x = x + named["b"].sum() + 2 * named["a"]
        return x if offset is None else x + offset

def create():
    return Net()

def nested(size):
    size = torch.Size([size] if isinstance(size, int) else size)
    return [torch.ones(size).expand(2, *size), (torch.ones(2, *size), torch.ones(2, *size))]  # one shares its memory

Pair = collections.namedtuple("Pair", "a b")

def wrong(kind):
    return {"set": {1, 2}, "keys": [{7: x()}], "pair": Pair(1, 2)}[kind]

def x():
    return torch.ones(2)
"""

MANIFEST = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
methods:
  forward:
    example_inputs:
      - list: [{shape: [2, 8]}, {tuple: [{shape: [2, 8]}, {shape: [2, 8]}]}]
      - dict: {b: {shape: [3]}, a: {shape: [2, 8]}}
      - value: 3
      - value: true
      - value: null
    example_kwargs:
      offset: {shape: [8]}
      scale: {value: 0.5}
    dynamic_shapes:
      - [[{dim: n, max: 6}, null], [[{dim: n, max: 6}, null], [{dim: n, max: 6}, null]]]
      - {b: [{dim: m, min: 2, max: 9}], a: [{dim: n, max: 6}, null]}
      - null
      - null
      - null
    dynamic_kwargs_shapes: {scale: null}
defaults: {partitioners: [xnnpack]}
"""


def eager(built: Outcome) -> Any:
    """Returns the module itself."""
    spec = importlib.util.spec_from_file_location("eager_model", built.directory.parent / "model.py")
    assert spec is not None
    assert spec.loader is not None
    source = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(source)
    return source.create().eval()


def run(program: Path, method: str, *inputs: Any) -> list[torch.Tensor]:
    return list(Runtime.get().load_program(program).load_method(method).execute(inputs))


def nested_inputs(rows: int) -> tuple[list[Any], dict[str, torch.Tensor], torch.Tensor]:
    first, second, third, a = (torch.randn(rows, 8) for _ in range(4))
    return [first, (second, third)], {"a": a, "b": torch.randn(rows + 1)}, torch.randn(8)


@pytest.mark.parametrize("rows", [1, 2, 6])
def test_the_program_takes_the_parts_one_after_the_other(built: Outcome, rows: int) -> None:
    pair, named, offset = nested_inputs(rows)
    flat = [pair[0], *pair[1], named["a"], named["b"], 3, True, None, 0.5, offset]
    expected = eager(built)(pair, named, 3, True, None, scale=0.5, offset=offset)
    torch.testing.assert_close(run(built.directory / "net.pte", "forward", *flat)[0], expected)


@pytest.fixture
def built(build: Build) -> Outcome:
    made = build(MANIFEST, model=MODEL)
    assert made.code == 0, made.err
    return made


def test_keys_in_another_order_give_the_same_program(built: Outcome, build: Build) -> None:
    manifest = MANIFEST.replace("{b: {shape: [3]}, a: {shape: [2, 8]}}", "{a: {shape: [2, 8]}, b: {shape: [3]}}")
    assert manifest != MANIFEST
    assert build(manifest, model=MODEL).read("net.pte") == built.read("net.pte")


def test_a_factory_may_return_nested_inputs(built: Outcome, build: Build) -> None:
    written = "list: [{shape: [2, 8]}, {tuple: [{shape: [2, 8]}, {shape: [2, 8]}]}]"
    manifest = MANIFEST.replace(written, '{factory: "model:nested", kwargs: {size: 8}}')
    assert manifest != MANIFEST
    assert build(manifest, model=MODEL).read("net.pte") == built.read("net.pte")


def test_a_string_is_null_to_the_program(build: Build) -> None:
    """ExecuTorch does the same: a string has its effect during the export."""
    made = build(MANIFEST.replace("value: true", "value: cos"), model=MODEL)
    assert made.code == 0, made.err
    inputs = made.json("net.report.json")["methods"]["forward"]["inputs"]
    assert [entry.get("value") for entry in inputs] == [None] * 5 + [3, None, None, 0.5, None]
    pair, named, offset = nested_inputs(2)
    flat = [pair[0], *pair[1], named["a"], named["b"], 3, None, None, 0.5, offset]
    expected = eager(made)(pair, named, 3, "cos", None, scale=0.5, offset=offset)
    torch.testing.assert_close(run(made.directory / "net.pte", "forward", *flat)[0], expected)


def test_the_runtime_refuses_another_value(built: Outcome) -> None:
    pair, named, offset = nested_inputs(2)
    flat = [pair[0], *pair[1], named["a"], named["b"], 4, True, None, 0.5, offset]
    with pytest.raises(RuntimeError):
        run(built.directory / "net.pte", "forward", *flat)


def test_keyword_inputs_may_be_all_inputs(build: Build) -> None:
    manifest = """\
    schema: executorch-model/v1
    name: net
    model: {factory: "model:create"}
    methods: {forward: {example_kwargs: {x: {shape: [2, 8]}}, dynamic_kwargs_shapes: {x: [{dim: n, max: 4}, null]}}}
    """
    made = build(manifest)
    assert made.code == 0, made.err
    x = torch.randn(3, 8)
    assert run(made.directory / "net.pte", "forward", x)[0].shape == (3, 4)


@pytest.mark.rotates(days=3)
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "list: [{shape: [2, 8]}, {tuple: [{shape: [2, 8]}, {shape: [2, 8]}]}]",
            '{factory: "model:wrong", kwargs: {kind: set}}',
            "methods.forward.example_inputs[0].factory: `model:wrong` returned set, not a tensor",
        ),
        (
            "list: [{shape: [2, 8]}, {tuple: [{shape: [2, 8]}, {shape: [2, 8]}]}]",
            '{factory: "model:wrong", kwargs: {kind: keys}}',
            "`model:wrong` returned a dict with the key 7\n    use strings as keys",
        ),
        (
            "list: [{shape: [2, 8]}, {tuple: [{shape: [2, 8]}, {shape: [2, 8]}]}]",
            '{factory: "model:wrong", kwargs: {kind: pair}}',
            "`model:wrong` returned Pair, a subclass of tuple\n    return a plain tuple",
        ),
        (
            "list: [{shape: [2, 8]}, {tuple: [{shape: [2, 8]}, {shape: [2, 8]}]}]",
            '{factory: "model:nested", kwargs: {size: [8, 1]}}',
            "methods.forward.dynamic_shapes[0][0]: 2 entries for an input of 3 dimensions",
        ),
        ("offset: {", "ofset: {", "methods.forward.example_kwargs.ofset: the method has no parameter `ofset`"),
    ],
)
def test_what_does_not_fit_is_named(build: Build, old: str, new: str, message: str) -> None:
    manifest = MANIFEST.replace(old, new)
    assert manifest != MANIFEST
    made = build(manifest, model=MODEL)
    assert made.code in (1, 2)
    assert message in made.err


DERIVED = """\
import torch

class Windows(torch.nn.Module):
    def forward(self, samples, differences):
        return samples.view(samples.shape[0] // 8, 8).sum(1), samples[1:] + differences

def create():
    return Windows()
"""


def test_dimensions_may_be_multiples_and_derived_from_others(build: Build) -> None:
    manifest = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
defaults: {partitioners: [xnnpack]}
methods:
  forward:
    example_inputs: [{shape: [32]}, {shape: [31]}]
    dynamic_shapes: [[{dim: seq, multiple_of: 8, max: 128}], [{dim: seq - 1}]]
"""
    built = build(manifest, model=DERIVED)
    assert built.code == 0, built.err
    for size in (8, 24, 128):
        samples, differences = torch.randn(size), torch.randn(size - 1)
        sums, moved = run(built.directory / "net.pte", "forward", samples, differences)
        assert torch.allclose(sums, samples.view(-1, 8).sum(1), atol=1e-5)
        assert torch.allclose(moved, samples[1:] + differences)


def test_a_multiple_that_the_model_fixes_is_named(build: Build) -> None:
    manifest = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
methods: {forward: {example_inputs: [{shape: [32]}], dynamic_shapes: [[{dim: seq, multiple_of: 8, max: 128}]]}}
"""
    source = DERIVED.replace(", differences):", "):").replace("samples[1:] + differences", "samples + torch.ones(32)")
    built = build(manifest, model=source)
    assert built.code == 1
    assert "the model fixes" in built.err


def test_a_dimension_may_have_the_name_that_a_multiple_would_use(build: Build) -> None:
    manifest = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
methods:
  forward:
    example_inputs: [{shape: [32]}, {shape: [5]}]
    dynamic_shapes: [[{dim: seq, multiple_of: 8, max: 128}], [{dim: seq_by_8, max: 9}]]
"""
    built = build(manifest, model=DERIVED.replace("samples[1:] + differences", "differences + 1"))
    assert built.code == 0, built.err


@pytest.mark.rotates(days=2)
@pytest.mark.parametrize(
    ("first", "second", "message"), [(16, 34, "cannot be"), (24, 33, "another input has"), (13, 27, "cannot be")]
)
def test_calibration_keeps_to_multiples_and_derived_sizes(first: int, second: int, message: str) -> None:
    seq = 8 * torch.export.Dim("part", min=1, max=8)
    dims: list[tuple[Any, ...] | None] = [(seq,), (2 * seq + 1,)]
    example = (torch.ones(16), torch.ones(33))
    Batches([(torch.ones(24), torch.ones(49))], ("calibration",)).check(example, dims)
    with pytest.raises(InputError, match=message):
        Batches([(torch.ones(first), torch.ones(second))], ("calibration",)).check(example, dims)
