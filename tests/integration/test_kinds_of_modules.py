"""What a factory may return, what a method may return, and errors about what no program can hold."""

from __future__ import annotations

import pytest
import torch
from executorch.runtime import Runtime

from .conftest import Build, Outcome

MODEL = """\
import collections
import dataclasses
import torch
from torch import nn

@dataclasses.dataclass
class Found:
    scores: torch.Tensor
    parts: list

torch.export.register_dataclass(Found)
Pair = collections.namedtuple("Pair", "scores parts")

class Net(nn.Module):
    def __init__(self, compute=lambda scores, x: scores.relu()):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.compute = compute
        with torch.no_grad():
            self.linear.weight.copy_(torch.arange(16.0).reshape(4, 4) / 16)
            self.linear.bias.zero_()

    def forward(self, x):
        return self.compute(self.linear(x), x)

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(8, 4)

    def forward(self, x):
        self.last = self.words(x.long())  # kept for debugging; there are words 0 to 7
        return self.last

class FloatAdd(nn.Module):
    def __init__(self):
        super().__init__()
        self.add = torch.ao.nn.quantized.FloatFunctional()

    def forward(self, x):
        return self.add.add(x, x)

def with_buffer(value):
    net = Net(lambda scores, x: scores)
    net.register_buffer("value", value)
    return net

def negated():
    net = Net(lambda scores, x: scores + net.value + net.constant - net.linear.bias)
    net.register_buffer("value", torch.full((4,), 1 + 2j).conj().imag)
    net.constant = torch._neg_view(torch.ones(4))
    net.linear.bias = nn.Parameter(torch._neg_view(torch.ones(4)))
    return net

MADE = {
    "module": Net,
    "program": lambda: torch.export.export(Net().eval(), (torch.ones(2, 4),)),
    "two programs": lambda: {"a": MADE["program"](), "b": MADE["program"]()},
    "named tuple": lambda: Net(lambda scores, x: Pair(scores, [x, scores.topk(2)])),
    "data class": lambda: Net(lambda scores, x: Found(scores, [x, scores.topk(2)])),
    "negated": lambda: negated(),
    "complex128": lambda: with_buffer(torch.ones(2, dtype=torch.complex128)),
    "keeps a tensor": Words,
    "float functional": lambda: FloatAdd(),
    "lstm": lambda: nn.LSTM(4, 4),
    "sparse": lambda: with_buffer(torch.eye(4).to_sparse()),
    "nested": lambda: with_buffer(torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])),
    "eager": lambda: torch.ao.quantization.quantize_dynamic(Net(), {nn.Linear}),
    "complex": lambda: Net(lambda scores, x: torch.linalg.eigvals(scores.T @ scores).abs()),
    "fp8": lambda: Net(lambda scores, x: scores + torch.ones(4, dtype=torch.float8_e5m2).float()),
    "float64": lambda: Net().double(),
    "set": lambda: Net(lambda scores, x: {scores}),
}

def create(made):
    return MADE[made]()
"""
MANIFEST = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create", kwargs: {made: MADE}}
methods: {forward: {entry: forward, example_inputs: [{shape: [2, 4], fill: arange}]}}
"""
X = torch.arange(8.0).reshape(2, 4)


def made(build: Build, what: str, entry: str = "forward") -> Outcome:
    manifest = MANIFEST.replace("MADE", what).replace("entry: forward", f"entry: {entry}")
    return build(manifest, model=MODEL)


def run(built: Outcome) -> list[torch.Tensor]:
    program = Runtime.get().load_program(built.directory / "net.pte")
    return list(program.load_method("forward").execute([X]))


@pytest.mark.parametrize(("what", "entry"), [("program", "forward"), ("two programs", "b")])
def test_a_factory_may_return_exported_programs(build: Build, what: str, entry: str) -> None:
    built, plain = made(build, what, entry), made(build, "module")
    assert built.code == plain.code == 0, built.err + plain.err
    assert torch.equal(run(built)[0], run(plain)[0])


def test_an_exported_program_keeps_its_sizes(build: Build) -> None:
    built = build(MANIFEST.replace("MADE", "program").replace("[2, 4]", "[3, 4]"), model=MODEL)
    assert built.code == 1
    assert "Guard failed: x.size()[0] == 2" in built.err


@pytest.mark.parametrize("what", ["named tuple", "data class"])
def test_results_with_names_are_plain_tuples_in_a_program(build: Build, what: str) -> None:
    built = made(build, what)
    assert (built.code, built.err) == (0, "")
    scores = X @ (torch.arange(16.0).reshape(4, 4) / 16).t()
    for result, expected in zip(run(built), (scores, X, *scores.topk(2)), strict=True):
        assert torch.allclose(result, expected)


def test_no_note_is_printed_about_what_only_tracing_assigns(build: Build) -> None:
    assert made(build, "lstm").err == ""


def test_a_method_that_keeps_a_tensor_runs_only_on_its_example_inputs(build: Build) -> None:
    built = made(build, "keeps a tensor")
    assert built.code == 0, built.err
    assert "assigns" not in built.err  # no call sees it


def test_a_float_module_of_eager_quantization_is_a_float_module(build: Build) -> None:
    built = made(build, "float functional")
    assert built.code == 0, built.err
    assert torch.equal(run(built)[0], 2 * X)


def test_views_that_negate_are_the_numbers_that_they_show(build: Build) -> None:
    built, plain = made(build, "negated"), made(build, "module")
    assert (built.code, plain.code) == (0, 0), built.err + plain.err
    assert torch.allclose(run(built)[0].add(3).relu(), run(plain)[0])


def test_what_cannot_be_saved_without_weights_is_exported_again(build: Build) -> None:
    built, plain = made(build, "complex128"), made(build, "module")
    assert (built.code, plain.code) == (0, 0), built.err + plain.err
    assert "safetensors cannot hold what the factory made" in built.err
    assert torch.equal(run(built)[0].relu(), run(plain)[0])


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("sparse", "`value` is a tensor of the layout sparse_coo"),
        ("nested", "`value` is a nested tensor"),
        ("eager", "`linear` is quantized in eager mode"),
        ("complex", "`aten.linalg_eigvals.default` of complex numbers has no form in real numbers"),
        ("fp8", "ExecuTorch has no kernels for 8-bit floats"),
        ("float64", "the operands have different dtypes: give `example_inputs` the dtype of the weights"),
        ("set", "return tensors, numbers, or tuples, lists and dicts of them"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_what_no_program_can_hold_is_named(build: Build, what: str, message: str) -> None:
    built = made(build, what)
    assert built.code == 1
    assert message in built.err
    assert not built.files
