"""Passes from code run at each of ExecuTorch's hook points, and their sources are part of what lowering depends on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.runtime import Runtime

from .conftest import MODEL, Build, Outcome

MANIFEST = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
methods:
  forward: {example_inputs: [{shape: [2, 8]}]}
  other: {entry: forward, example_inputs: [{shape: [2, 8]}]}
defaults: {partitioners: [xnnpack]}
checks: {compare: {leave_out: passes change what the methods compute}}
"""

# Each hook replaces one operator by the next, which shows which hooks ran: relu, neg, erf, asinh, atan, expm1. XNNPACK
# does not take the later ones.
PASSES = """\
import torch
from executorch.exir.dialects._ops import ops as edge_ops
from executorch.exir.pass_base import ExportPass, PassResult
from executorch.exir.pass_manager import PassManager
import names

def aten(method, program):
    if method == names.METHOD:
        for node in program.graph.nodes:
            if node.target == torch.ops.aten.relu.default:
                node.target = torch.ops.aten.neg.default
        program.graph_module.recompile()
    return program

class Replace(ExportPass):
    def __init__(self, old, new):
        super().__init__()
        self.old, self.new = old, new

    def call_operator(self, op, args, kwargs, meta):
        return super().call_operator(self.new if op == self.old else op, args, kwargs, meta)

def edge(method, program):
    assert any("neg" in str(node.target) for node in program.graph.nodes) == (method == names.METHOD)
    replace = Replace(edge_ops.edge.aten.neg.default, edge_ops.edge.aten.erf.default)
    return PassManager([replace]) if method == names.METHOD else []

def after_lowering(manager):
    assert sorted(manager.methods) == ["forward", "other"]
    return [Replace(edge_ops.edge.aten.erf.default, edge_ops.edge.aten.asinh.default)]

def one_method(manager):
    return {"forward": [Replace(edge_ops.edge.aten.asinh.default, edge_ops.edge.aten.atan.default)]}

def last():
    return [Replace(edge_ops.edge.aten.atan.default, edge_ops.edge.aten.expm1.default)]

def nothing(*arguments):
    return None

def strangers(*arguments):
    return [3]

def failing(*arguments):
    raise ValueError("not today")

def failing_later(method, program):
    def walk(graph_module):
        for node in graph_module.graph.nodes:
            if node.op == "call_function":
                raise ValueError("not for any node")
    return [walk]
"""


def passes(**hooks: list[str]) -> str:
    written = ", ".join(f"{hook}: {[f'passes:{name}' for name in names]}" for hook, names in hooks.items())
    return f"{MANIFEST}passes: {{{written}}}\n".replace("'", '"')


def run(made: Outcome, method: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the output of a method, and the output of the linear layer before it."""
    program = Runtime.get().load_program(made.directory / "net.pte")
    x = torch.arange(16.0).reshape(2, 8) / 16
    linear = x @ torch.full((8, 4), 0.125) - 0.5
    return program.load_method(method).execute([x])[0], linear


@pytest.fixture
def make(build: Build) -> Any:
    model = MODEL.replace(
        "    return Net()",
        "    net = Net()\n"
        "    torch.nn.init.constant_(net.linear.weight, 0.125)\n"
        "    torch.nn.init.constant_(net.linear.bias, -0.5)\n"
        "    return net",
    )

    def made(manifest: str) -> Outcome:
        return build(manifest, model=model, passes=PASSES, names='METHOD = "forward"\n')

    return made


@pytest.mark.parametrize(
    ("hooks", "expected"),
    [
        ({"aten": ["aten"]}, torch.neg),
        ({"aten": ["aten"], "edge": ["edge"]}, torch.erf),
        ({"aten": ["aten"], "edge": ["edge"], "edge_manager": ["after_lowering"]}, torch.asinh),
        ({"aten": ["aten"], "edge": ["edge"], "edge_manager": ["after_lowering", "one_method"]}, torch.atan),
        (
            {
                "aten": ["aten"],
                "edge": ["edge"],
                "edge_manager": ["after_lowering", "one_method"],
                "executorch": ["last"],
            },
            torch.expm1,
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else value.__name__,
)
def test_each_hook_runs_after_the_one_before(make: Any, hooks: dict[str, list[str]], expected: Any) -> None:
    made = make(passes(**hooks))
    assert made.code == 0, made.err
    found, linear = run(made, "forward")
    torch.testing.assert_close(found, expected(linear))
    found, linear = run(made, "other")
    torch.testing.assert_close(found, linear.relu())


@pytest.mark.parametrize(
    ("hook", "wanted"),
    [("aten", "an ExportedProgram"), ("edge", "a list"), ("edge_manager", "a list"), ("executorch", "a list")],
)
def test_another_result_is_an_error(make: Any, hook: str, wanted: str) -> None:
    made = make(passes(**{hook: ["nothing"]}))
    assert made.code == 1
    assert f"passes.{hook}[0]: `passes:nothing` returned NoneType, not {wanted}" in made.err


def test_wrong_and_failing_passes_are_named(make: Any) -> None:
    made = make(passes(edge=["strangers"]))
    assert made.code == 1
    assert "passes.edge[0]: `passes:strangers` returned int among its passes, which is not callable" in made.err
    made = make(passes(executorch=["failing"]))
    assert made.code == 1
    assert "passes.executorch[0]: `passes:failing` failed at passes.py:45, in failing: ValueError" in made.err


def test_a_failing_pass_names_no_line_of_the_model(make: Any) -> None:
    """It fails while it looks at a node of the graph, which need not be the cause."""
    made = make(passes(edge=["failing_later"]))
    assert made.code == 1
    assert "not for any node" in made.err
    assert "model.py" not in made.err


def test_a_callable_that_is_not_there(make: Any) -> None:
    made = make(passes(edge=["edgee"]))
    assert made.code == 2
    assert "passes.edge[0]: `passes` has no `edgee`" in made.err
    assert "did you mean `edge`?" in made.err


def test_a_read_that_a_pass_hides_fails_the_build(build: Build, tmp_path: Path) -> None:
    """Passes run in a child process, which has to tell its parent."""
    (tmp_path / "secret.txt").write_text("7")
    source = f"""\
def edge(method, program):
    try:
        open({str(tmp_path / "secret.txt")!r}).read()
    except Exception:
        pass
    return []
"""
    outcome = build(f'{MANIFEST}passes: {{edge: ["hiding:edge"]}}\n', model=MODEL, hiding=source)
    assert outcome.code == 1
    assert "hiding.py:3, in edge, opens" in outcome.err
    assert "secret.txt, which is not a declared file" in outcome.err
