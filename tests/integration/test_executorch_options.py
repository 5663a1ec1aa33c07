"""The options of ExecuTorch in a manifest: configurations of the edge dialect and the backend, and memory planning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.exir._serialize._program import _get_extended_header
from executorch.runtime import Runtime

from etbuild.files import program_file

from .conftest import Build, Outcome

MODEL = """\
import torch
from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.register_buffer("count", torch.zeros(1))
        torch.nn.init.constant_(self.linear.weight, 0.125)
        torch.nn.init.zeros_(self.linear.bias)

    def forward(self, x):
        return self.linear(x).sin().reshape(4, 4).cos().tanh()

    def step(self, x):
        self.count += 1
        return self.linear(x).sin() + self.count

def create():
    return Net()

class Roomy(MemoryPlanningAlgorithmSuite):
    def __call__(self, *arguments):
        sizes = super().__call__(*arguments)
        return [*sizes[:-1], sizes[-1] + 4096]

def roomy(*arguments):
    return Roomy()(*arguments)

def three(*arguments):
    return 3

def failing(*arguments):
    raise ValueError("no room")
"""

MANIFEST = """\
schema: executorch-model/v1
name: net
model: {{factory: "model:create"}}
methods:
  forward: {{example_inputs: [{{shape: [2, 8]}}]}}
  step: {{example_inputs: [{{shape: [2, 8]}}]{method}}}
{options}
"""


def facts(made: Outcome) -> dict[str, Any]:
    assert made.code == 0, made.err
    methods: dict[str, Any] = program_file.program_facts(program_file.read_program(made.read("net.pte")))["methods"]
    return methods


def run(program: Path, method: str, x: torch.Tensor) -> torch.Tensor:
    return Runtime.get().load_program(program).load_method(method).execute([x])[0]


@pytest.fixture
def make(build: Build) -> Any:
    def made(options: str = "", method: str = "") -> Outcome:
        return build(MANIFEST.format(options=options, method=method), model=MODEL)

    return made


@pytest.fixture(scope="module")
def kept() -> dict[str, Outcome]:
    return {}


@pytest.fixture
def plain(make: Any, kept: dict[str, Outcome]) -> Outcome:
    """The program without any options, built once."""
    if not kept:
        kept["plain"] = make()
    return kept["plain"]


def assert_runs(made: Outcome) -> None:
    x = torch.arange(16.0).reshape(2, 8)
    linear = x @ torch.full((8, 8), 0.125)
    expected = linear.sin().reshape(4, 4).cos().tanh()
    torch.testing.assert_close(run(made.directory / "net.pte", "forward", x), expected)
    torch.testing.assert_close(run(made.directory / "net.pte", "step", x), linear.sin() + 1)


def test_memory_planning_for_all_methods_and_for_one(make: Any, plain: Outcome) -> None:
    for_all, for_one = "executorch: {memory_planning: {memory_planning_algo: naive}}", "memory_planning_algo: greedy"
    greedy, naive, mixed = facts(plain), facts(make(for_all)), facts(make(for_all, f", memory_planning: {{{for_one}}}"))
    assert naive["forward"]["memory"][0] > greedy["forward"]["memory"][0]
    assert mixed["forward"] == naive["forward"]
    assert mixed["step"] == greedy["step"] != naive["step"]


def test_what_the_application_brings_is_not_planned(make: Any, plain: Outcome) -> None:
    made = make("executorch: {memory_planning: {alloc_graph_input: false, alloc_graph_output: false}}")
    assert facts(made)["forward"]["memory"][0] < facts(plain)["forward"]["memory"][0]
    assert_runs(made)


def test_an_algorithm_of_the_sources(make: Any, plain: Outcome) -> None:
    planned = facts(make('executorch: {memory_planning: {memory_planning_algo: "model:roomy"}}'))
    assert planned["forward"]["memory"][0] == facts(plain)["forward"]["memory"][0] + 4096


def test_an_algorithm_that_fails_is_named_with_its_line(make: Any) -> None:
    made = make('executorch: {memory_planning: {memory_planning_algo: "model:failing"}}')
    assert made.code == 1
    place = "executorch.memory_planning.memory_planning_algo"
    assert f"{place}: `model:failing` failed at model.py:34, in failing: ValueError: no room" in made.err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Roomy", "`model:Roomy` failed: TypeError: "),
        ("three", "`model:three` returned 3, not a list of sizes"),
        ("there", "`model` has no `there`"),
    ],
)
def test_values_that_are_not_algorithms(make: Any, name: str, message: str) -> None:
    common = make(f'executorch: {{memory_planning: {{memory_planning_algo: "model:{name}"}}}}')
    assert common.code in (1, 2)
    assert f"model.yaml:7:54: executorch.memory_planning.memory_planning_algo: {message}" in common.err
    own = make(method=f', memory_planning: {{memory_planning_algo: "model:{name}"}}')
    assert f"methods.step.memory_planning.memory_planning_algo: {message}" in own.err


def test_buffers_without_planned_memory_go_by_their_names(make: Any) -> None:
    made = make("executorch: {memory_planning: {alloc_mutable_buffers: false}, emit_mutable_buffer_names: true}")
    assert made.code == 0, made.err
    assert b"count" in made.read("net.pte")


def test_a_method_without_a_tensor_among_its_outputs(build: Build) -> None:
    model = MODEL.replace("return self.linear(x).sin() + self.count", "return 3")
    model = model.replace("        self.count += 1\n", "")
    made = build(MANIFEST.format(options="", method=""), model=model)
    assert made.code == 1
    assert "model.yaml:6:3: methods.step: the method returns no tensor" in made.err


def test_alignments_reach_the_file(make: Any) -> None:
    made = make(
        "executorch: {segment_alignment: 4096, constant_tensor_alignment: 256, delegate_alignment: 256}\n"
        "defaults: {partitioners: [xnnpack]}"
    )
    facts(made)
    header = _get_extended_header(made.read("net.pte"))
    assert header is not None
    assert header.segment_base_offset % 4096 == 0
    assert_runs(made)


def test_every_other_option_is_taken(make: Any, plain: Outcome) -> None:
    made = make("""
executorch:
  extract_delegate_segments: false
  remove_view_copy: false
  emit_mutable_buffer_names: true
  do_quant_fusion_and_const_prop: true
  run_reinplace_pass: true
  reinplace_extra_ops: ["aten::index_copy"]
  enable_non_cpu_memory_planning: true
  sym_shape_eval_pass: hint_based
  to_out_var_pass: {ignore_to_out_var_failure: true}
  propagate_device_config: {skip_h2d_for_method_inputs: {step: true}, skip_d2h_for_method_outputs: true}
  emit_stacktrace: false
  dynamic_memory_planning_mode: upper_bound
""")
    found = facts(made)
    assert "aten::view_copy.out" in found["forward"]["operators"]
    assert "aten::view_copy.out" not in facts(plain)["forward"]["operators"]
    assert b"count" in made.read("net.pte")
    assert b"count" not in plain.read("net.pte")
    assert_runs(made)


def test_preserved_operators_stay_whole(make: Any, plain: Outcome) -> None:
    made = make('edge_compile: {preserve_ops: ["aten::linear"], core_aten_ops_exception_list: ["aten::linear"]}')
    assert "aten::linear.out" in facts(made)["forward"]["operators"]
    assert "aten::linear.out" not in facts(plain)["forward"]["operators"]
    assert_runs(made)


def test_the_edge_dialect_without_checks_and_dim_orders(make: Any) -> None:
    assert_runs(make("edge_compile: {check_ir_validity: false, skip_dim_order: true}"))


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ('edge_compile: {preserve_ops: ["aten::lineer"]}', "edge_compile.preserve_ops"),
        ('executorch: {reinplace_extra_ops: ["aten::lineer.default"]}', "executorch.reinplace_extra_ops"),
    ],
)
def test_an_operator_that_is_not_there(make: Any, options: str, place: str) -> None:
    made = make(options)
    assert made.code == 2
    assert f"{place}: there is no operator `aten::lineer" in made.err
    assert "did you mean `aten::linear" in made.err
