"""Limits in the manifest, and the content of the report."""

from __future__ import annotations

from typing import Any

import pytest

from etbuild import json_schema
from etbuild.errors import CheckError
from etbuild.plan.plan import Plan, from_manifest
from etbuild.report import checks
from etbuild.report.report import report
from etbuild.results import LoweringFacts

from .indexes import MANIFEST, edited

LOWERING: LoweringFacts = {
    "schema": "executorch-lowering/v3",
    "notes": [],
    "data": {},
    "tensors": {},
    "constant_methods": {},
    "artifacts": [
        {"file": "net.pte", "kind": "program", "size": 1000, "sha256": "0" * 64},
        {"file": "net.weights/1.ptd", "kind": "named_data", "size": 300, "sha256": "1" * 64, "tag": "weights"},
        {"file": "net.weights/2.ptd", "kind": "named_data", "size": 400, "sha256": "2" * 64, "tag": "weights"},
    ],
    "program": {
        "methods": {
            name: {"inputs": [], "outputs": [], "delegates": {"XnnpackBackend": 1}, "operators": {}, "memory": memory}
            for name, memory in {"decode": [10, 20], "prefill": [100]}.items()
        },
        "bytes": {"constants": [1, 2], "mutable": [], "delegates": [30], "named_data": {"key": 5}},
        "external_keys": [],
    },
    "template": "0" * 64,
    "with_weights": {},
    "operators": {
        "decode": {"delegated": {"XnnpackBackend": {"aten::linear": 3}}, "fallback": {"aten::sin": 1}},
        "prefill": {"delegated": {}, "fallback": {}},
    },
    "graphs": {},
    "instructions": {},
    "memory": {},
    "named_data": {"weights": {"a": 300, "b": 400}},
    "blob_weights": {"constants": [], "named_data": {}},
    "sharing": {
        "expected_bytes": 900,
        "shared_bytes": 300,
        "duplicate_bytes": 600,
        "duplicates": [
            {
                "weight": "head.weight",
                "bytes": 600,
                "copies": 2,
                "readers": ["XnnpackBackend of `decode`", "portable operators of `prefill`"],
            }
        ],
    },
    "non_finite": {},
    "runtime_limits": [],
}


def planned(**sections: Any) -> Plan:
    manifest: Any = MANIFEST
    for section, value in sections.items():
        manifest = edited(manifest, section, value=value)
    return from_manifest(manifest)


@pytest.mark.parametrize(
    ("wanted", "kept", "message"),
    [
        ({"max_program_bytes": 999}, {"max_program_bytes": 1000}, "the program has 1,000 bytes; the limit is 999"),
        ({"max_named_data_bytes": 699}, {"max_named_data_bytes": 700}, "the named data has 700 bytes; the limit is"),
        (
            {"max_named_data_bytes": {"weights": 1}},
            {"max_named_data_bytes": {"weights": 700}},
            "checks.max_named_data_bytes.weights: the named data `weights` has 700 bytes; the limit is 1",
        ),
        (
            {"max_duplicate_bytes": 599},
            {"max_duplicate_bytes": 600},
            "duplicate weights take 600 bytes; the limit is 599",
        ),
        ({"max_memory_bytes": 99}, {"max_memory_bytes": 100}, "`prefill` plans 100 bytes of memory; the limit is 99"),
        (
            {"max_memory_bytes": {"decode": 29}},
            {"max_memory_bytes": {"decode": 30}},
            "checks.max_memory_bytes.decode: `decode` plans 30 bytes of memory; the limit is 29",
        ),
        ({"min_delegated": 0.8}, {"min_delegated": 0.75}, "`decode`: 75 % of the operators are delegated; "),
        ({"min_delegated": {"decode": 0.9}}, {"min_delegated": {"prefill": 1}}, "`min_delegated` requires 90 %"),
    ],
)  # fmt: skip
def test_a_bound_is_kept_or_named(wanted: dict[str, Any], kept: dict[str, Any], message: str) -> None:
    assert checks.measure(planned(checks=kept), LOWERING)
    with pytest.raises(CheckError) as error:
        checks.measure(planned(checks=wanted), LOWERING)
    assert message in str(error.value)
    assert len(error.value.problems) == 1
    assert error.value.exit_code == 3


def test_a_lost_sharing_is_named() -> None:
    with pytest.raises(CheckError) as error:
        checks.measure(planned(checks={"max_duplicate_bytes": 0}), LOWERING)
    held = "`head.weight` is held by XnnpackBackend of `decode` and by portable operators of `prefill`"
    assert held in str(error.value)


def test_all_broken_bounds_are_named_at_once() -> None:
    with pytest.raises(CheckError) as error:
        checks.measure(planned(checks={"max_program_bytes": 1, "max_memory_bytes": 1}), LOWERING)
    assert len(error.value.problems) == 3


def test_the_report_says_what_was_checked() -> None:
    reduced = planned(checks={"max_memory_bytes": 100})
    made = report(reduced, LOWERING, checks.measure(reduced, LOWERING), [])
    assert made["checks"][0] == {"check": "max_memory_bytes", "of": "decode", "limit": 100, "actual": 30}
    assert json_schema.problems("report", made) == []


def test_the_report_leaves_out_what_it_is_told_to() -> None:
    made = report(planned(report={"operators": False, "blobs": False}), LOWERING, [], [])
    assert "operators" not in made["methods"]["decode"]
    assert made["bytes"]["external"] == {"weights": {"blobs": 2, "bytes": 700}}
    assert made["bytes"]["constants"] == {"blobs": 2, "bytes": 3}
    assert made["sharing"] == {"expected_bytes": 900, "shared_bytes": 300, "duplicate_bytes": 600}
    assert json_schema.problems("report", made) == []


NON_FINITE = {"head.weight": {"kind": "parameter", "nan": 2, "infinite": 1, "elements": 1000}}
MISSING = {
    "method": "decode",
    "operator": "aten::sort.values",
    "what": "it has no kernel for `aten::sort.values`",
    "hint": "bring one",
}


def found(**facts: Any) -> LoweringFacts:
    lowering: LoweringFacts = {**LOWERING, **facts}  # type: ignore[typeddict-item]
    return lowering


@pytest.mark.parametrize(
    ("check", "facts", "message"),
    [
        (
            "finite",
            {"non_finite": NON_FINITE},
            "the parameter `head.weight` has 2 NaN and 1 infinite of 1,000 elements",
        ),
        (
            "runtime",
            {"runtime_limits": [MISSING]},
            "ExecuTorch's runtime cannot run all of `decode`: it has no kernel for `aten::sort.values`",
        ),
    ],
)
def test_what_is_suspicious_is_a_note_or_an_error(check: str, facts: dict[str, Any], message: str) -> None:
    lowering = found(**facts)
    for checks_section in ({}, {check: False}):
        reduced = planned(checks=checks_section)
        assert checks.measure(reduced, lowering) == []
        [note] = (problem.message for problem in checks.notes(reduced, lowering))
        assert note.startswith(f"{message}; ")
        made = report(reduced, lowering, [], [note])
        assert made["notes"] == [note]
        assert json_schema.problems("report", made) == []
    asked = planned(checks={check: True, "max_program_bytes": 1})
    assert checks.notes(asked, lowering) == []
    with pytest.raises(CheckError) as error:
        checks.measure(asked, lowering)
    assert f"checks.{check}: {message}" in str(error.value)
    assert len(error.value.problems) == 2


def test_a_sound_program_has_nothing_to_note() -> None:
    reduced = planned(checks={"finite": True, "runtime": True})
    measured = checks.measure(reduced, LOWERING)
    assert measured == [{"check": name, "limit": 0, "actual": 0} for name in ("finite", "runtime")]
    assert "notes" not in report(reduced, LOWERING, measured, [])
    assert checks.notes(reduced, LOWERING) == []


def test_a_runner_needs_the_kernels_of_the_package() -> None:
    lowering = found(runtime_limits=[MISSING])
    plain, ours = planned(runner="executorch-llm/v1"), {"libraries": ["ops.so"]}
    with pytest.raises(CheckError) as error:
        checks.measure(plain, lowering)
    assert str(error.value).startswith("runner: ExecuTorch's runtime cannot run all of `decode`: it has no kernel")
    assert "the runner would fail" in str(error.value.problems[0].hint)
    assert checks.measure(plain, LOWERING) == []
    for sections in ({"checks": {"runtime": False}}, {"custom_ops": ours}):
        with_kernels = planned(runner="executorch-llm/v1", **sections)
        assert checks.measure(with_kernels, lowering) == []
        assert len(checks.notes(with_kernels, lowering)) == 1
