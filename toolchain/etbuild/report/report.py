"""The report of a build: the content of the program, by method and by bytes. It contains no path and no time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import cast

from etbuild.plan.plan import Plan
from etbuild.report import refusals
from etbuild.report.parts import Added
from etbuild.results import (
    CheckResult,
    LoweringFacts,
    Report,
    ReportedMethod,
    ReportedSizes,
    ReportedTotals,
    Sharing,
    Total,
)


def report(
    plan: Plan, lowering: LoweringFacts, checks: list[CheckResult], notes: list[str], parts: Sequence[Added] = ()
) -> Report:
    """The content of `NAME.report.json`.

    Args:
        plan: The plan. Its `report` decides what the report lists.
        lowering: The facts of the lowering.
        checks: The result of `checks.measure`.
        notes: The result of `checks.notes`. If it is empty, the report has no key for notes.
        parts: What plug-ins add.
    """
    program = lowering["program"]
    sizes: ReportedSizes = {**program["bytes"], "external": lowering["named_data"]}
    content: Report = {
        "schema": "executorch-report/v2",
        "name": plan.name,
        "methods": {name: _method(name, lowering, plan.report.operators) for name in sorted(plan.methods)},
        "constant_methods": dict(sorted(lowering["constant_methods"].items())),
        "bytes": sizes if plan.report.blobs else _totals(sizes),
        "sharing": _sharing(lowering["sharing"], plan.report.blobs),
        "checks": checks,
    }
    if plan.report.blobs:
        content["blob_weights"] = lowering["blob_weights"]
    if notes:
        content["notes"] = notes
    if lowering["with_weights"]:
        content["with_weights"] = lowering["with_weights"]
    for part in parts:
        content |= cast("Report", part.content)
    return content


def _method(name: str, lowering: LoweringFacts, listed: bool) -> ReportedMethod:
    method = lowering["program"]["methods"][name]
    reported: ReportedMethod = {
        "inputs": method["inputs"],
        "outputs": method["outputs"],
        "delegates": method["delegates"],
        "memory": method["memory"],
    }
    if listed:
        reported["operators"] = lowering["operators"][name]
        if refused := refusals.find(lowering["graphs"].get(name)):
            reported["why_not"] = refused
    return reported


def _sharing(sharing: Sharing, listed: bool) -> Sharing:
    if listed:
        return sharing
    return {
        "expected_bytes": sharing["expected_bytes"],
        "shared_bytes": sharing["shared_bytes"],
        "duplicate_bytes": sharing["duplicate_bytes"],
    }


def _totals(sizes: ReportedSizes) -> ReportedTotals:
    return {
        "constants": _total(sizes["constants"]),
        "mutable": _total(sizes["mutable"]),
        "delegates": _total(sizes["delegates"]),
        "named_data": _total(sizes["named_data"].values()),
        "external": {tag: _total(blobs.values()) for tag, blobs in sizes["external"].items()},
    }


def _total(sizes: Collection[int]) -> Total:
    return {"blobs": len(sizes), "bytes": sum(sizes)}
