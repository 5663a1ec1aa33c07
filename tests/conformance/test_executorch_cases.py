"""ExecuTorch's own multi-method cases, each in a manifest. The delegates have the content that ExecuTorch's tests
expect."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.conftest import Build, Outcome

if TYPE_CHECKING:
    from executorch.exir.schema import Program

SOURCE = (Path(__file__).parent / "executorch_cases.py").read_text("utf-8")
# The names of the cases of ExecuTorch 1.5.1; one test checks that there are no others.
EXPECTING = [
    "to_backend_single_method",
    "to_backend_two_methods",
    "to_backend_two_methods_multiple_partitions",
    "to_backend_two_methods_different_partitions",
    "to_backend_two_methods_different_backends",
    "to_backend_control_flow",
    "to_backend_sequential_delegates",
    "to_backend_constants",
]
NOT_FOUND, END_TO_END = "to_backend_not_found", "end_to_end"


def build_case(build: Build, case: str) -> Outcome:
    from . import executorch_cases

    methods = []
    for name, method in executorch_cases.collect(case).items():
        inputs = ", ".join(f"{{shape: {list(tensor.shape)}, fill: ones}}" for tensor in method.inputs)
        factory = f'{{factory: "executorch_cases:partitioner", kwargs: {{case: {case}, method: {name}}}}}'
        entry = executorch_cases.entry(case, name)
        methods.append(
            f"  {name}: {{entry: {entry}, example_inputs: [{inputs}], "
            f"partitioners: [{{backend: custom, options: {factory}}}]}}\n"
        )
    head = (
        "schema: executorch-model/v1\nname: net\n"
        f'model: {{factory: "executorch_cases:create", kwargs: {{case: {case}}}}}\nmethods:\n'
    )
    return build(head + "".join(methods), executorch_cases=SOURCE)


def program(outcome: Outcome) -> Program:
    from etbuild.files import program_file

    assert outcome.code == 0, outcome.err
    return program_file.read_program(outcome.read("net.pte")).program


def payloads(outcome: Outcome) -> dict[str, list[str]]:
    """Returns the contents of the delegates by method, in the order of the graph."""
    content = program(outcome)
    return {
        plan.name: [content.backend_delegate_data[each.processed.index].data.decode() for each in plan.delegates]
        for plan in content.execution_plan
    }


def test_every_case_of_the_file_is_here() -> None:
    from . import executorch_cases

    assert sorted(executorch_cases.names()) == sorted([*EXPECTING, NOT_FOUND, END_TO_END])


@pytest.mark.parametrize("case", EXPECTING)
def test_delegates_hold_the_payloads_that_executorch_expects(build: Build, case: str) -> None:
    from . import executorch_cases

    expected = {name: method.payloads for name, method in executorch_cases.collect(case).items()}
    assert payloads(build_case(build, case)) == expected


def test_an_unknown_backend_is_executorchs_error(build: Build) -> None:
    outcome = build_case(build, NOT_FOUND)
    assert outcome.code == 1
    assert "Backend Invalid was not found." in outcome.err


def test_equal_payloads_of_two_methods_are_there_once(build: Build) -> None:
    """ExecuTorch's case also runs the program, with a demo runtime that is not in the wheel."""
    outcome = build_case(build, END_TO_END)
    payload = "1version:0#op:demo::aten.sin.default, numel:1, dtype:torch.float32<debug_handle>1#"
    assert payloads(outcome) == {"forward": [payload], "forward_copy": [payload]}
    assert outcome.read("net.pte").count(payload.encode()) == 1
