"""Errors and notes about a graph name the lines of the model that it comes from."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save

from etplugins.upstream import xnnpack_operators
from tests.helpers.manifests import net

from .conftest import Build

MODEL = """\
import torch


def spectrum_of(x):
    return torch.fft.rfft(x)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.kernel = torch.nn.Parameter(torch.ones(1, 1, 2, 2))
        self.register_buffer("scale", torch.ones(8).to(torch.float8_e5m2))

    def spectrum(self, x):
        y = spectrum_of(x)
        return torch.linalg.eigvals(y @ y.mT).abs()

    def small_floats(self, x):
        return x * self.scale.float()

    def mixed(self, x):
        y = x.relu()
        return torch.where(y > 0, y, y.double().sum())

    def eigenvalues(self, x):
        y = self.linear(x)
        return torch.linalg.eigh(y @ y.T)[0]

    def delegated(self, x):
        y = torch.conv2d(x[None, None], self.kernel)
        return torch.conv2d(self.kernel, self.kernel) + y

    def branches(self, x):
        return torch.cond(x.sum() > 0, lambda x: self.linear(x), lambda x: self.linear(x * 2), (x,))

    def loop(self, x):
        n = torch.zeros((), dtype=torch.int64)
        return torch.while_loop(lambda n, x: n < 3, lambda n, x: (n + 1, x * 2), (n, x))[1]

    def unlimited(self, x):
        size = x.sum().to(torch.int64).item()
        return torch.ones(size)

    def sorted(self, x):
        return x.sin().sort()[0]

    def flipped(self, x):
        return x.expand(1, 2, *x.shape).to(memory_format=torch.channels_last).flip(2)

    def fine(self, x):
        y = torch.exp(x)
        return y @ y.T


def create():
    return Net().requires_grad_(False)
"""


def manifest(*methods: str, partitioners: str = "[]", more: str = "") -> str:
    listed = "".join(f"  {name}: {{example_inputs: [{{shape: [2, 8]}}]{more}}}\n" for name in methods)
    return (
        'schema: executorch-model/v1\nname: net\nmodel: {factory: "model:create"}\n'
        f"defaults: {{partitioners: {partitioners}}}\nmethods:\n{listed}"
    )


def at(code: str) -> str:
    """The place of a line of the model, as messages name it."""
    lines = MODEL.splitlines()
    [number] = [number for number, line in enumerate(lines) if line.strip() == code]
    function = next(line for line in reversed(lines[:number]) if line.lstrip().startswith("def "))
    return f"at model.py:{number + 1}, in {function.split()[1].partition('(')[0]}: `{code}`"


ERRORS = [
    (
        "spectrum",
        "[]",
        "`aten.linalg_eigvals.default` of complex numbers has no form in real numbers",
        [at("return torch.linalg.eigvals(y @ y.mT).abs()")],
    ),
    (
        "small_floats",
        "[]",
        "takes no tensors of float8_e5m2",
        [at("return x * self.scale.float()"), "float8_e5m2 comes from `scale`"],
    ),
    ("mixed", "[]", "`aten.where.self` takes no", [at("return torch.where(y > 0, y, y.double().sum())")]),
    ("eigenvalues", "[]", "is not in Core ATen opset", [at("return torch.linalg.eigh(y @ y.T)[0]")]),
    ("delegated", "[xnnpack]", "NCHW format", [at("return torch.conv2d(self.kernel, self.kernel) + y")]),
    (
        "branches",
        "[xnnpack]",
        "was not decomposed or delegated",
        [at("return torch.cond(x.sum() > 0, lambda x: self.linear(x), lambda x: self.linear(x * 2), (x,))")],
    ),
    (
        "loop",
        "[]",
        "the method has a `while_loop`",
        [at("return torch.while_loop(lambda n, x: n < 3, lambda n, x: (n + 1, x * 2), (n, x))[1]")],
    ),
    (
        "unlimited",
        "[xnnpack]",
        "methods.unlimited: a size of what `aten::full` returns depends on values and has no upper limit",
        [at("return torch.ones(size)")],
    ),
    (
        "flipped",
        "[]",
        "the first wrong operator of `flipped` is `aten.flip.default`",
        [at("return x.expand(1, 2, *x.shape).to(memory_format=torch.channels_last).flip(2)")],
    ),
]


@pytest.mark.parametrize(("method", "partitioners", "message", "places"), ERRORS, ids=[case[0] for case in ERRORS])
def test_an_error_names_its_line(build: Build, method: str, partitioners: str, message: str, places: list[str]) -> None:
    made = build(manifest(method, partitioners=partitioners), model=MODEL)
    assert (made.code, made.files) == (1, [])
    assert message in made.err
    for place in places:
        assert f"    {place}\n" in made.err, made.err
    assert made.err.count("\n    at ") == 1, made.err


def test_an_operator_that_a_backend_has_made_names_the_line_it_comes_from(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XNNPACK makes a convolution of the batch norm, and changes shapes around it."""
    monkeypatch.setattr(xnnpack_operators, "_USUAL", {})
    model = net("self.norm = torch.nn.BatchNorm1d(4)", forward="return self.norm(x.sin())")
    shapes = ", dynamic_shapes: [[{dim: n, min: 2, max: 4}, null, {dim: m, min: 2, max: 9}]]"
    made = build(
        manifest("forward", partitioners="[xnnpack]", more=shapes).replace("[2, 8]", "[3, 4, 8]"),
        model=model,
    )
    assert made.code == 1
    assert "methods.forward: lowering forward failed: RuntimeError: XNNPACK reshape only supports 1 dynamic" in made.err
    assert " dimension. (at `aten.unsqueeze_copy.default`)\n" in made.err
    assert "    at model.py:9, in forward: `return self.norm(x.sin())`\n" in made.err
    assert "leave out all but one in `dynamic_shapes`" in made.err


def test_a_note_names_its_line_and_the_report_does_not(build: Build) -> None:
    made = build(manifest("sorted"), model=MODEL)
    assert made.code == 0, made.err
    assert f"link one into the application\n    {at('return x.sin().sort()[0]')}\n" in made.err
    [note] = made.json("net.report.json")["notes"]
    assert "model.py" not in note


@pytest.mark.parametrize("how", [("--jobs", "1"), ("--jobs", "2")], ids=" ".join)
@pytest.mark.parametrize("failing", ["eigenvalues", "sorted"])
def test_the_method_that_fails_is_the_one_whose_line_is_named(build: Build, how: tuple[str, ...], failing: str) -> None:
    code = {
        "eigenvalues": "return torch.linalg.eigh(y @ y.T)[0]",
        "sorted": "return x.sin().sort()[0]",
    }
    made = build(manifest("fine", failing), *how, model=MODEL)
    assert f"    {at(code[failing])}\n" in made.err
    assert made.err.count("model.py:") == 1, made.err


@pytest.mark.parametrize(
    "more", [", strict: true", ", quantize: {pt2e: {quantizers: [xnnpack], calibration: example_inputs}}"]
)
def test_other_ways_to_export_know_their_lines(build: Build, more: str) -> None:
    made = build(manifest("eigenvalues", more=f", entry: eigenvalues{more}"), model=MODEL)
    assert f"    {at('return torch.linalg.eigh(y @ y.T)[0]')}\n" in made.err


def test_a_method_that_is_exported_while_it_is_lowered_knows_its_lines(build: Build) -> None:
    own = (
        "    def load_state_dict(self, *args, **kwargs):\n        return super().load_state_dict(*args, **kwargs)\n\n\n"
    )
    model = MODEL.replace("def create", f"{own}def create").replace(
        "torch.ones(8).to(torch.float8_e5m2)", "torch.ones(8)"
    )
    weights = {
        "linear.weight": torch.eye(8),
        "linear.bias": torch.ones(8),
        "kernel": torch.ones(1, 1, 2, 2),
        "scale": torch.ones(8),
    }
    text = manifest("eigenvalues").replace('create"', 'create", weights: w.safetensors')
    made = build(text, model=model, files={"w.safetensors": save(weights)})
    assert "the methods are exported again when they are lowered" in made.err
    assert f"    {at('return torch.linalg.eigh(y @ y.T)[0]')}\n" in made.err


OPERATOR = """\
import torch

library = torch.library.Library("NAMESPACE", "DEF")
library.define("twice(Tensor x) -> Tensor")
library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")


class Net(torch.nn.Module):
    def forward(self, x):
        y = x + 1
        return torch.ops.NAMESPACE.twice(y)

    def fine(self, x):
        return x.exp()


def create():
    return Net()
"""


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_an_operator_without_an_out_variant_names_its_line(build: Build, jobs: str) -> None:
    """With two jobs, the method is lowered in another process, and loses its provenance."""
    model = OPERATOR.replace("NAMESPACE", f"lines_{jobs}")
    made = build(manifest("fine", "forward"), "--jobs", jobs, model=model)
    assert f"Missing out variants: {{'lines_{jobs}::twice'}}" in made.err
    assert f"    at model.py:11, in forward: `return torch.ops.lines_{jobs}.twice(y)`\n" in made.err
    assert "methods.forward: emitting" in made.err
    assert "write them with PyTorch's in the model" in made.err
