"""Tests that each promise of ExecuTorch's multi-method lowering holds for a manifest. `docs/conformance.md` lists
them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.integration.conftest import Outcome

from .conftest import Lower, take
from .three_methods import MODEL, methods

SIN, COS = take("sin", "JointBackend"), take("cos", "OtherJointBackend")
BOTH = take("sin, cos", "JointBackend")


def delegates(outcome: Outcome) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Returns the backend and the compiled result of each delegate in the program, by method."""
    from etbuild.files import program_file

    assert outcome.code == 0, outcome.err
    program = program_file.read_program(outcome.read("net.pte")).program
    return {
        plan.name: [
            (each.id, json.loads(program.backend_delegate_data[each.processed.index].data)) for each in plan.delegates
        ]
        for plan in program.execution_plan
    }


def test_a_dict_of_methods_becomes_one_program(lower: Lower) -> None:
    outcome, _ = lower(methods(b=f"[{COS}]", a=f"[{SIN}]", c="[]"), MODEL)
    assert list(delegates(outcome)) == ["a", "b", "c"]
    assert outcome.files == ["net.index.json", "net.pte", "net.report.json"]


def test_each_method_has_partitioners_of_its_own(lower: Lower) -> None:
    outcome, _ = lower(methods(a=f"[{SIN}, {COS}]", b=f"[{COS}]"), MODEL)
    found = delegates(outcome)
    assert sorted((backend, facts["operators"][0]) for backend, facts in found["a"]) == [
        ("JointBackend", "aten::sin"),
        ("JointBackend", "aten::sin"),
        ("OtherJointBackend", "aten::cos"),
    ]
    assert [backend for backend, _ in found["b"]] == ["OtherJointBackend"]


def test_partitioners_take_in_their_order(lower: Lower) -> None:
    first, second = take("sin, cos", "JointBackend"), take("cos, exp", "OtherJointBackend")
    outcome, _ = lower(methods(b=f"[{first}, {second}]", a=f"[{second}]"), MODEL)
    found = {
        name: [(backend, facts["operators"]) for backend, facts in each] for name, each in delegates(outcome).items()
    }
    assert found["b"] == [("JointBackend", ["aten::cos"]), ("OtherJointBackend", ["aten::exp"])]
    assert found["a"] == [("OtherJointBackend", ["aten::exp", "aten::cos"])]


def test_two_real_backends_in_order(lower: Lower) -> None:
    """The second backend does not see what the first takes. The other method does not use the first backend.

    Before it calls the first backend, ExecuTorch decomposes the operators that this backend does not ask to keep. So
    XNNPACK sees no linear layer.
    """
    tail = methods(c=f"[{take('relu', 'JointBackend')}, xnnpack]", scaled="[xnnpack]")
    outcome, calls = lower(tail, MODEL)
    assert outcome.code == 0, outcome.err
    assert [call["operators"] for call in calls] == [{"c": [["aten::relu"]]}]
    operators = {name: method["operators"] for name, method in outcome.json("net.report.json")["methods"].items()}
    assert operators["c"]["delegated"] == {
        "JointBackend": {"aten::relu": 1},
        "XnnpackBackend": {"aten::addmm": 1, "aten::permute_copy": 1},
    }
    assert set(operators["scaled"]["delegated"]) == {"XnnpackBackend"}


def test_one_list_of_partitioners_serves_all_methods(lower: Lower) -> None:
    outcome, calls = lower(methods(a="", b="") + f"defaults: {{partitioners: [{BOTH}]}}\n", MODEL)
    assert {name: len(found) for name, found in delegates(outcome).items()} == {"a": 2, "b": 1}
    assert [call["operators"] for call in calls] == [
        {"a": [["aten::sin"], ["aten::cos", "aten::sin"]], "b": [["aten::cos"]]}
    ]


def test_a_method_without_partitioners_passes_through_untouched(lower: Lower) -> None:
    """It has the same content in the program as in a program of its own without any backend."""
    from etbuild.files import program_file

    single, _ = lower(methods(c="[]"), MODEL)
    beside, _ = lower(methods(a=f"[{BOTH}]", c="[]", scaled="[xnnpack]"), MODEL)
    assert beside.code == 0, beside.err
    facts = [outcome.json("net.report.json")["methods"]["c"] for outcome in (single, beside)]
    assert facts[0] == facts[1]
    assert facts[1]["delegates"] == {}
    plans = [
        next(p for p in program_file.read_program(outcome.read("net.pte")).program.execution_plan if p.name == "c")
        for outcome in (single, beside)
    ]
    assert plans[0].chains == plans[1].chains
    assert plans[0].operators == plans[1].operators


def test_a_backend_is_called_once_for_all_methods(lower: Lower) -> None:
    """Also if methods have it at different positions of their lists."""
    outcome, calls = lower(methods(a=f"[{SIN}, {COS}]", b=f"[{COS}]", c="[]"), MODEL)
    assert outcome.code == 0, outcome.err
    assert [(call["call"], call["backend"], list(call["operators"])) for call in calls] == [
        ("preprocess_multimethod", "JointBackend", ["a"]),
        ("preprocess_multimethod", "OtherJointBackend", ["a", "b"]),
    ]


def test_partitions_and_compile_specs_come_in_the_same_order(lower: Lower) -> None:
    taken = take("sin, cos, exp", "JointBackend", "of_")
    gaps = MODEL.replace("x.sin().exp().cos().sin()", "x.sin().neg().exp().neg().cos()")
    outcome, calls = lower(methods(a=f"[{taken}]", b=f"[{taken}]"), gaps)
    (call,) = calls
    assert call["operators"]["a"] == [["aten::sin"], ["aten::exp"], ["aten::cos"]]
    assert call["specs"]["a"] == [["spec=of_sin"], ["spec=of_exp"], ["spec=of_cos"]]
    assert call["specs"]["b"] == [["spec=of_exp"]]
    assert [facts["specs"] for _, facts in delegates(outcome)["a"]] == call["specs"]["a"]
    assert [facts["operators"] for _, facts in delegates(outcome)["a"]] == call["operators"]["a"]


def test_without_a_joint_preprocess_each_partition_is_preprocessed(lower: Lower) -> None:
    single = take("sin, cos", "SingleBackend")
    outcome, calls = lower(methods(a=f"[{single}]", b=f"[{single}]"), MODEL)
    assert [call["call"] for call in calls] == ["preprocess"] * 3
    assert [call["operators"] for call in calls] == [["aten::sin"], ["aten::cos", "aten::sin"], ["aten::cos"]]
    assert {name: len(found) for name, found in delegates(outcome).items()} == {"a": 2, "b": 1}


def test_data_in_the_named_data_store_is_shared(lower: Lower) -> None:
    sharing = take("mul", "SharingBackend")
    outcome, _ = lower(methods(scaled=f"[{sharing}]", twice=f"[{sharing}]"), MODEL)
    assert all(facts["weights"] == ["scale"] for found in delegates(outcome).values() for _, facts in found)
    assert outcome.json("net.report.json")["bytes"]["named_data"] == {"scale": 16}
    shared = outcome.json("net.report.json")["sharing"]
    assert (shared["expected_bytes"], shared["shared_bytes"], shared["duplicate_bytes"]) == (16, 16, 0)


@pytest.mark.parametrize("order", ["at once", "one after the other"])
def test_one_key_with_two_contents_is_refused(lower: Lower, order: str) -> None:
    both = take("sin, cos", "ClashingBackend")
    one, other = take("sin", "ClashingBackend"), take("cos", "ClashingBackend")
    tail = methods(a=f"[{both}]", b=f"[{both}]") if order == "at once" else methods(a=f"[{one}, {other}]")
    outcome, _ = lower(tail, MODEL)
    assert outcome.code == 1
    assert "store different data under the key `everything`" in outcome.err


@pytest.mark.parametrize(
    ("method", "taken"),
    [
        ("cond", [["aten::sin"], ["aten::cos"]]),
        ("map", [["aten::sin"]]),
        ("scan", [["aten::cos"], ["aten::sin"]]),
    ],
)
def test_partitions_inside_control_flow_are_lowered(lower: Lower, method: str, taken: list[list[str]]) -> None:
    outcome, calls = lower(methods(**{method: f"[{BOTH}]", "b": f"[{BOTH}]"}), MODEL)
    assert [facts["operators"] for _, facts in delegates(outcome)[method]] == taken
    assert calls[0]["operators"] == {"b": [["aten::cos"]], method: taken}
    fallback = outcome.json("net.report.json")["methods"][method]["operators"]["fallback"]
    assert not {"aten::sin", "aten::cos"} & set(fallback)


def test_a_while_loop_is_refused_before_a_backend_is_called(lower: Lower) -> None:
    outcome, calls = lower(methods(while_loop=f"[{BOTH}]", a=f"[{BOTH}]"), MODEL)
    assert (outcome.code, calls) == (1, [])
    assert "methods.while_loop: the method has a `while_loop`" in outcome.err


def test_executorch_itself_cannot_emit_a_while_loop() -> None:
    """If this fails, ExecuTorch supports it now, and `lower` no longer needs to refuse it."""
    import torch
    from executorch.exir import to_edge
    from torch._higher_order_ops.while_loop import while_loop

    class Loop(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            start = torch.zeros((), dtype=torch.int64)
            return while_loop(lambda n, x: n < 3, lambda n, x: (n + 1, x.sin()), (start, x))[1]

    edge = to_edge(torch.export.export(Loop(), (torch.ones(3),)))
    with pytest.raises(Exception, match="Unsupported control flow operator: while_loop"):
        edge.to_executorch()


def test_weights_that_a_delegate_consumes_are_gone_from_the_top_level(lower: Lower) -> None:
    """A parameter and a buffer: neither is left as a constant or as an input of the delegate's call."""
    taken = take("mul, add", "JointBackend")
    outcome, _ = lower(methods(scaled=f"[{taken}]"), MODEL)
    ((_, facts),) = delegates(outcome)["scaled"]
    assert facts["weights"] == ["scale", "shift"]
    assert outcome.json("net.report.json")["bytes"]["constants"] == []
    plain, _ = lower(methods(scaled="[]"), MODEL)
    assert plain.json("net.report.json")["bytes"]["constants"] == [16, 16]


@pytest.mark.parametrize("options", [(), ("--no-accelerate",)])
def test_a_partitioner_that_changes_the_graph_is_refused(lower: Lower, options: tuple[str, ...]) -> None:
    change = '[{backend: custom, options: {factory: "demo_backend:change"}}]'
    outcome, calls = lower(methods(a=change), MODEL, *options)
    assert (outcome.code, calls) == (1, [])
    assert "the partitioner changed the graph: it may only tag nodes" in outcome.err


def test_an_unknown_backend_is_named(lower: Lower) -> None:
    outcome, _ = lower(methods(a=f"[{take('sin', 'NowhereBackend')}]", b=f"[{BOTH}]"), MODEL)
    assert outcome.code == 1
    assert "Backend NowhereBackend was not found" in outcome.err
    assert "import it in the partitioner's module" in outcome.err


def test_partitioners_of_an_unknown_method_are_refused(lower: Lower) -> None:
    outcome, calls = lower(methods(a="") + f"defaults: {{partitioners: {{aa: [{SIN}]}}}}\n", MODEL)
    assert (outcome.code, calls) == (2, [])
    assert "aa" in outcome.err
