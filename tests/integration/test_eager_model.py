"""A build compares its program with the model as its user makes it: the factory, the checkpoint, `eval()`, a call."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save
from torch.utils import _pytree as pytree

from etplugins.comparison.compare import FIRST
from etplugins.comparison.eager import EagerMethod
from etplugins.comparison.model import ExportedForm, ModelComparison
from tests.helpers import runtime

from .conftest import Build

# What reads a weight in another way than by its name.
HOLDERS = """\
import functools

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self, holder):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        weight = self.layer.weight
        if holder == "listed":
            self.held = [weight.detach()]
        elif holder == "mapped":
            self.held = {"w": (weight.t(),)}
        elif holder == "bound":
            self.held = functools.partial(F.linear, weight=weight)
        elif holder == "enclosed":
            view = weight.detach()[:, :2]
            self.held = lambda x: x[:, :2] @ view.t()
        elif holder == "buffered":
            self.register_buffer("held", weight.detach().t(), persistent=False)

    def listed(self, x):
        return x @ self.held[0]

    def mapped(self, x):
        return x @ self.held["w"][0]

    def bound(self, x):
        return self.held(x)

    def enclosed(self, x):
        return self.held(x)

    def buffered(self, x):
        return x @ self.held


class Merging(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.down, self.up = nn.Linear(4, 4), nn.Linear(4, 2, bias=False), nn.Linear(2, 4, bias=False)
        self.merged = False

    def train(self, mode=True):
        super().train(mode)
        if not mode and not self.merged:
            self.layer.weight.data += self.up.weight.data @ self.down.weight.data
            self.merged = True
        return self

    def forward(self, x):
        return self.layer(x)


def create(holder):
    torch.manual_seed(0)
    return Merging() if holder == "forward" else Net(holder)
"""


@pytest.mark.parametrize("holder", ["listed", "mapped", "bound", "enclosed", "buffered", "forward"])
def test_what_holds_a_weight_gets_the_checkpoint(build: Build, holder: str, tmp_path: Path) -> None:
    space: dict[str, object] = {}
    exec(HOLDERS, space)
    make = space["create"]
    assert callable(make)
    model = make(holder)
    state = {name: torch.randn(tensor.shape) for name, tensor in model.state_dict().items()}
    built = build(
        f"""
        schema: executorch-model/v1
        name: net
        model: {{factory: "model:create", kwargs: {{holder: {holder}}}, weights: net.safetensors}}
        methods: {{{holder}: {{example_inputs: [{{shape: [2, 4]}}]}}}}
        """,
        model=HOLDERS,
        files={"net.safetensors": save(state)},
    )
    assert built.code == 0, built.err
    model.load_state_dict(state)
    model.eval()
    inputs = torch.randn(2, 4)
    [[[output]]] = runtime.run(built.directory / "net.pte", [[(holder, [inputs])]], tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(output, getattr(model, holder)(inputs))


BRANCHES = """\
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        if torch.compiler.is_exporting():
            return self.layer(x * 1.5)
        return self.layer(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.steps = nn.Linear(4, 4), Block(), 0
        layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)

    def branching(self, x):
        return self.second(self.first(x))

    def counting(self, x):
        self.steps += 1
        return x * self.steps

    def padded(self, x, padding):
        return self.encoder(x, src_key_padding_mask=padding)

    def passing(self, x):
        return self.first(x).relu()

    def right(self, x):
        return self.first(x)


def create():
    torch.manual_seed(0)
    return Net()


def padding():
    return torch.tensor([[False, False, True], [False, True, True]])


def doubled(method, program):
    if method == "passing":
        for node in program.graph.nodes:
            if node.op == "call_function" and "relu" in str(node.target):
                node.target = torch.ops.aten.sigmoid.default
    return program
"""
WRONG = {
    "branching": ("example_inputs: [{shape: [2, 4]}]", "does not compute is `second.layer` (Linear)"),
    "counting": ("example_inputs: [{shape: [2, 4], fill: zeros}]", "state that only Python sees"),
    "padded": ("example_inputs: [{shape: [2, 3, 4]}, {factory: 'model:padding'}]", "instead of 0 "),
    "passing": ("example_inputs: [{shape: [2, 4]}]", "or `passes.aten` changes what it computes"),
}


@pytest.mark.parametrize("method", WRONG)
def test_an_export_that_differs_from_the_model_is_an_error(build: Build, method: str) -> None:
    inputs, words = WRONG[method]
    built = build(
        f"""
        schema: executorch-model/v1
        name: net
        model: {{factory: "model:create"}}
        passes: {{aten: ["model:doubled"]}}
        methods:
          {method}: {{{inputs}}}
          right: {{example_inputs: [{{shape: [2, 4]}}]}}
        """,
        model=BRANCHES,
    )
    assert built.code == 1
    assert f"methods.{method}: the program and the exported method compute something else than the model" in built.err
    assert words in built.err
    assert "methods.right" not in built.err


EXTRA = """\
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.scale = torch.nn.Linear(4, 4), 1.0

    def get_extra_state(self):
        return {"scale": self.scale}

    def set_extra_state(self, state):
        self.scale = state["scale"]

    def forward(self, x):
        return self.layer(x) * self.scale


def create():
    return Net()
"""


def test_state_that_is_no_tensor_is_refused(build: Build, tmp_path: Path) -> None:
    space: dict[str, object] = {}
    exec(EXTRA, space)
    make = space["create"]
    assert callable(make)
    torch.save(make().state_dict(), tmp_path / "net.pt")
    built = build(
        """
        schema: executorch-model/v1
        name: net
        model: {factory: "model:create", weights: {file: net.pt, ignore: ["*_extra_state"]}}
        methods: {forward: {example_inputs: [{shape: [2, 4]}]}}
        """,
        model=EXTRA,
        files={"net.pt": (tmp_path / "net.pt").read_bytes()},
    )
    assert built.code == 2
    assert "`Net.set_extra_state` would load `_extra_state`, which is no tensor" in built.err


@pytest.mark.parametrize(("quantized", "made"), [(["one", "two"], 2), (["one"], 4), ([], 5)])
def test_only_judged_calls_are_made(quantized: list[str], made: int) -> None:
    """Of a quantized method, only the call with the example inputs is judged. Earlier calls may change its state."""
    counted = list[str]()

    class Method(EagerMethod):
        def call(self, spec: Any, leaves: Any) -> list[Any]:
            counted.append(self.entry)
            return [*leaves]

    x = torch.arange(4.0)
    spec = pytree.tree_structure(((x,), {}))
    eager = {name: Method(torch.nn.Identity(), name, nullcontext) for name in ("one", "two")}
    forms = {name: ExportedForm(spec, name in quantized, True) for name in eager}
    comparison = ModelComparison(eager, forms, dict.fromkeys(eager), (), False, pytest.fail)
    calls = [("one", FIRST, [x], [x]), ("two", FIRST, [x], [x])]
    calls += [(name, "another call", [x], [x]) for name in ("one", "two", "one")]
    assert comparison.first_wrong(calls) is None
    assert len(counted) == made
    assert comparison.losses == dict.fromkeys(quantized, "exact")
