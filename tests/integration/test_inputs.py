"""Inputs other than single tensors: lists, tuples, mappings, plain values and keywords, compared with eager PyTorch."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sympy  # type: ignore[import-untyped]
import torch
from executorch.runtime import Runtime
from torch.utils._sympy.functions import OpaqueUnaryFn_sqrt
from torch.utils._sympy.value_ranges import ValueRanges

from etbuild.errors import InputError
from etbuild.export import example_values, size_conditions
from etbuild.inputs.step_context import StepContext
from etbuild.key.declared import Inputs
from etbuild.plan.parts import TensorExample
from etplugins.quantize.calibration import Batches

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


SUBSAMPLED = """
import torch

class Net(torch.nn.Module):
    def subsampled(self, x):
        x = torch.nn.functional.pad(x, (0, 1))
        return x.view(x.shape[0] // 4, 4).mean(1)

    def long(self, x):
        return x[:3] if x.shape[0] > 8 else x

    def fixed(self, x):
        return x + torch.ones(31)

    def windows(self, x):
        return x[1:].view(-1, 5).sum(1), x.view(-1)

    def multiples(self, x):
        return x.view(-1, 5).sum(1)

    def equal(self, x, y):
        return x + y

    def shifted(self, x, y):
        return x[1:] + y

def create():
    return Net()
"""


def test_a_derived_size_may_have_the_range(build: Build) -> None:
    """A model that reads its input in steps takes sizes that are derived from the size of none of its inputs."""
    manifest = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
methods:
  forward:
    entry: subsampled
    example_inputs: [{shape: [31]}]
    dynamic_shapes: [[{dim: 4*t - 1, min: 11, max: 79}]]
"""
    built = build(manifest, model=SUBSAMPLED)
    assert built.code == 0, built.err
    for size in (11, 47, 79):
        x = torch.randn(size)
        [means] = run(built.directory / "net.pte", "forward", x)
        assert torch.allclose(means, torch.nn.functional.pad(x, (0, 1)).view(-1, 4).mean(1), atol=1e-6)


@pytest.mark.parametrize(
    ("entry", "sizes", "hint"),
    [
        ("subsampled", [31], "write {dim: 4*_t0 - 1, max: 79} for `t0`"),
        ("long", [31], "write {dim: t0, min: 9, max: 80}"),
        ("fixed", [31], "write `null` for `t0`, which is always 31"),
        ("windows", [31], "write {dim: 5*_t0 - 4, min: 11, max: 76} for `t0`"),
        ("multiples", [30], "write {dim: t0, multiple_of: 5, max: 80}"),
        ("equal", [31, 31], "write {dim: t0} for `t1`"),
        ("shifted", [31, 30], "write {dim: t1, max: 79}; write {dim: t1 + 1, max: 80} for `t0`"),
    ],
)
def test_the_sizes_that_a_model_takes_are_written_as_a_manifest(
    build: Build, entry: str, sizes: list[int], hint: str
) -> None:
    shapes = ", ".join(f"[{{dim: t{number}, max: 80}}]" for number in range(len(sizes)))
    inputs = ", ".join(f"{{shape: [{size}]}}" for size in sizes)
    manifest = 'schema: executorch-model/v1\nname: net\nmodel: {factory: "model:create"}\n'
    manifest += f"methods: {{{entry}: {{example_inputs: [{inputs}], dynamic_shapes: [{shapes}]}}}}\n"
    built = build(manifest, model=SUBSAMPLED)
    assert built.code == 1
    assert f"    {hint}\n" in built.err
    assert "Dim.AUTO" not in built.err


TWICE = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv1d(8, 4, kernel_size=3)

    def forward(self, sound):
        return self.conv(sound).relu().mean(2)

    def highest(self, sound):
        return self.conv(sound).amax(2)

def create():
    return Net()
"""


def test_the_range_of_the_hint_builds_and_the_other_methods_with_the_dimension_are_named(build: Build) -> None:
    manifest = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
methods:
  forward: {example_inputs: [{shape: [1, 8, 50]}], dynamic_shapes: [[null, null, {dim: time, max: 90}]]}
  highest: {example_inputs: [{shape: [1, 8, 50]}], dynamic_shapes: [[null, null, {dim: time, max: 90}]]}
"""
    refused = build(manifest, model=TWICE)
    assert refused.code == 1
    assert "torch.export fixes or narrows `time`. It says: " in refused.err
    assert "    write {dim: time, min: 4, max: 90}\n    `highest` has this dimension too, " in refused.err
    built = build(manifest.replace("max: 90", "min: 4, max: 90"), model=TWICE)
    assert built.code == 0, built.err


STATIC = (
    '{pt2e: {quantizers: [{backend: xnnpack, options: {per_channel: true}}], calibration: {factory: "model:batches"}}}'
)
ATTENDED = """\
import torch

class Frames(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.step, self.layer = torch.nn.Conv1d(1, 4, 10, stride=10), torch.nn.Linear(4, 4)

    def forward(self, x):
        frames = self.step(x[:, None]).transpose(1, 2)
        heads = self.layer(frames).view(1, frames.shape[1], 2, 2).transpose(1, 2)
        attended = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)
        return attended.transpose(1, 2).reshape(1, frames.shape[1], 4)

    def asked(self, x):
        return x * 2 if 1 % (x.shape[1] // 10) else x

    def halves(self, x):
        return x * 2 if x.shape[1] // 10 % 2 == 0 else x

def create():
    return Frames()

def batches():
    return [torch.linspace(-3, 3, 400).view(1, 400), torch.linspace(3, -3, 80).view(1, 80)]
"""


@pytest.mark.parametrize(("quantize", "nearness"), [("null", 1e-5), (STATIC, 0.05)], ids=["floats", "pt2e"])
def test_conditions_that_hold_for_each_size_need_no_proof(build: Build, quantize: str, nearness: float) -> None:
    """Frames of a sound that attend to each other: torch.export cannot simplify what it asks of their number. A
    quantized method is exported twice."""
    manifest = f"""\
schema: executorch-model/v1
name: net
model: {{factory: "model:create"}}
methods:
  forward: {{example_inputs: [{{shape: [1, 400]}}], dynamic_shapes: [[null, {{dim: samples, min: 20, max: 400}}]]}}
defaults: {{partitioners: [xnnpack], quantize: {quantize}}}
"""
    built = build(manifest, model=ATTENDED)
    assert built.code == 0, built.err
    torch.manual_seed(0)
    made: dict[str, Any] = {}
    exec(ATTENDED, made)
    expected = made["create"]()
    for size in (20, 39, 205, 400):
        x = torch.randn(1, size)
        [found] = run(built.directory / "net.pte", "forward", x)
        torch.testing.assert_close(found, expected(x).detach(), rtol=10 * nearness, atol=nearness)


def test_a_condition_that_some_sizes_break_is_an_error(build: Build) -> None:
    manifest = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
methods: {halves: {example_inputs: [{shape: [1, 400]}], dynamic_shapes: [[null, {dim: samples, min: 20, max: 400}]]}}
"""
    built = build(manifest, model=ATTENDED)
    assert built.code == 1
    assert "    write {dim: samples, multiple_of: 20" in built.err


def test_a_condition_on_too_many_sizes_is_named_as_such(build: Build) -> None:
    """torch.export says that not all sizes satisfy it, although each one does."""
    manifest = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
methods: {asked: {example_inputs: [{shape: [1, 400]}], dynamic_shapes: [[null, {dim: n, min: 20, max: 2000000}]]}}
"""
    built = build(manifest, model=ATTENDED)
    assert built.code == 1
    assert "more than 1,048,576 sizes are too many to try" in built.err
    assert "make the range of a dimension smaller" in built.err
    assert "satisfy the generated guard" not in built.err


def _condition(write: Callable[..., Any], ranges: list[tuple[int, int]]) -> bool | None:
    symbols = [sympy.Symbol(f"s{number}", integer=True, positive=True) for number in range(len(ranges))]
    of_symbols = zip(symbols, itertools.starmap(ValueRanges, ranges), strict=True)
    return size_conditions.holds(write(*symbols), dict(of_symbols))


def test_a_condition_is_tried_for_each_size() -> None:
    unknown = sympy.Function("unknown")
    assert _condition(lambda n: sympy.Ne(n, 21), [(2, 20)]) is True
    assert _condition(lambda n: sympy.Ne(n, 20), [(2, 20)]) is False
    assert _condition(lambda n: sympy.Ne(n, 1), [(2, 1 << 40)]) is None
    assert _condition(lambda n: sympy.Ne(n, 1 << 10), [(2, 1 << 40)]) is False
    assert _condition(lambda n, m: sympy.Ne(n * m, 11), [(2, 20), (2, 5)]) is True
    assert _condition(lambda n, m: sympy.Ne(n * m, 100), [(2, 20), (2, 5)]) is False
    assert _condition(lambda n, m: sympy.Ne(n * m, 11), [(2, 2000), (2, 2000)]) is None
    assert _condition(lambda n: sympy.Ne(unknown(n), 0), [(2, 20)]) is False
    assert _condition(lambda n: sympy.Ne(OpaqueUnaryFn_sqrt(5 - n), 9), [(2, 20)]) is False


SMALL = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.zeros(4))

    def shape(self, x):
        return x.squeeze(0) if x.shape[0] == 1 else x * 2

    def value(self, x):
        return x + 1 if x.shape[0] == 1 else x * 2

    def nothing(self, x):
        return x.sum() + 1 if x.shape[0] == 0 else x.sum()

    def blocks(self, x):
        return x * 3 if x.shape[0] // 8 == 1 else x

    def second(self, x, y):
        return x + y.sum() if y.shape[0] == 1 and x.shape[0] > 1 else x

    def right(self, x):
        self.state.add_(x.sum())
        return x * self.state[0]

def create():
    return Net()
"""


@pytest.mark.parametrize(
    ("entry", "inputs", "shapes", "sizes"),
    [
        ("shape", "[{shape: [40]}]", "[[{dim: n, min: 1, max: 100}]]", "[1]"),
        ("value", "[{shape: [40], fill: ones}]", "[[{dim: n, min: 0, max: 100}]]", "[1]"),
        ("nothing", "[{shape: [40]}]", "[[{dim: n, min: 0, max: 100}]]", "[0]"),
        ("blocks", "[{shape: [40], fill: ones}]", "[[{dim: n, multiple_of: 8, max: 80}]]", "[8]"),
        ("second", "[{shape: [4]}, {shape: [4], fill: ones}]", "[[{dim: n, max: 9}], [{dim: m, max: 9}]]", "[4], [1]"),
        ("value", "[{shape: [40], fill: ones}]", "[[{dim: n, min: 2, max: 100}]]", None),
        ("right", "[{shape: [40], fill: ones}]", "[[{dim: n, max: 100}]]", None),
    ],
)
def test_a_size_of_1_gives_what_the_model_gives(
    build: Build, entry: str, inputs: str, shapes: str, sizes: str | None
) -> None:
    """torch.export assumes that no dynamic size is 0 or 1."""
    manifest = 'schema: executorch-model/v1\nname: net\nmodel: {factory: "model:create"}\n'
    manifest += f"methods: {{{entry}: {{example_inputs: {inputs}, dynamic_shapes: {shapes}}}}}\n"
    built = build(manifest, model=SMALL)
    assert built.code == (0 if sizes is None else 1), built.err
    if sizes is not None:
        assert f"for inputs of {sizes}, the exported method gives something else than the model" in built.err
    elif entry == "right":
        [found] = run(built.directory / "net.pte", entry, torch.ones(1))
        torch.testing.assert_close(found, torch.ones(1))


FIXING = """\
import torch
from torch._higher_order_ops.map import map as map_rows

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = torch.nn.LSTM(4, 4)
        self.register_buffer("table", torch.ones(6, 4))

    def recurrent(self, x):
        return self.lstm(x)[0]

    def loop(self, x):
        return sum(x[step] for step in range(x.shape[0]))

    def number(self, x):
        return torch.linspace(0, 1, x.shape[0])[:, None] * x

    def added(self, x):
        return self.doubled(x) + self.table

    def doubled(self, x):
        return x.reshape(6, 4) * 2

    def padded(self, x):
        missing = -x.shape[0] % 8
        return torch.nn.functional.pad(x, (0, 0, 0, missing)) if missing else x

    def branch(self, x):
        return torch.cond(x.sum() > 0, lambda x: x.reshape(6, 4) + 1, lambda x: x - 1, (x,))

    def mapped(self, x):
        return map_rows(lambda row: row * 2, x)

def create():
    return Net()
"""


@pytest.mark.parametrize(
    ("entry", "condition"),
    [
        ("recurrent", "`t == 6` in `aten.lstm.input` at model.py:11, in recurrent: `return self.lstm(x)[0]`"),
        ("loop", "`t == 6` at model.py:14, in "),
        ("number", "`t == 6` at model.py:17, in number: `return torch.linspace(0, 1, x.shape[0])[:, None] * x`"),
        ("added", "`(4*t) == 24` in `aten.reshape.default` at model.py:23, in doubled: `return x.reshape(6, 4) * 2`"),
        ("padded", "`(((-1)*t) % 8) != 0` at model.py:27, in padded: `return torch.nn.functional.pad("),
        ("branch", " == t` at model.py:30, in branch: `return torch.cond("),
    ],
)
def test_the_line_that_fixes_a_dimension_is_named(build: Build, entry: str, condition: str) -> None:
    built = build(_fixing(entry, strict=False), model=FIXING)
    assert built.code == 1
    assert "torch.export fixes or narrows `t`. It says: " in built.err
    assert "    the export relies on " in built.err
    assert condition in built.err


def test_a_strict_export_names_the_line_that_fixes_a_dimension(build: Build) -> None:
    built = build(_fixing("loop", strict=True), model=FIXING)
    assert built.code == 1
    assert "specialized it to be a constant (6).\n    the export relies on `t == 6` at model.py:14, in " in built.err


def test_the_operator_that_lowering_fixes_a_dimension_for_is_named(build: Build) -> None:
    built = build(_fixing("mapped", strict=False), model=FIXING)
    assert built.code == 1
    assert "methods.mapped: lowering fixes dimension 0 of the input `x`, which is dynamic\n" in built.err
    assert "    at model.py:33, in mapped: `return map_rows(lambda row: row * 2, x)`\n    `map_impl` " in built.err


def _fixing(entry: str, strict: bool) -> str:
    """A manifest with a method of `FIXING`."""
    return f"""\
schema: executorch-model/v1
name: net
model: {{factory: "model:create"}}
methods:
  {entry}:
    strict: {str(strict).lower()}
    example_inputs: [{{shape: [6, 4]}}]
    dynamic_shapes: [[{{dim: t, max: 20}}, null]]
"""


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
    assert "torch.export fixes or narrows `8*" in built.err


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


def test_numbers_that_a_manifest_leaves_out_are_random_and_always_the_same() -> None:
    """Zeros would not show a mistake: each input has numbers of its own, and a method that is renamed keeps them."""

    def made(method: str, index: int, dtype: str) -> torch.Tensor:
        example = TensorExample((2, 40), dtype)
        path = ("methods", method, "example_inputs", index)
        value = example_values.make_one(example, torch.nn.Identity(), path, StepContext(Inputs.named({}, {}, [])))
        assert isinstance(value, torch.Tensor)
        return value

    first = made("forward", 0, "float32")
    assert 0 < float(first.min()) < float(first.max()) < 1
    assert len(first.unique()) == first.numel()
    assert torch.equal(first.bfloat16(), made("other", 0, "bfloat16"))
    assert not torch.equal(first, made("forward", 1, "float32"))
    assert not made("forward", 0, "int64").any()
    assert [round(float(each) * 2**24) for each in first[0, :3]] == [8172570, 5450077, 15249629]
