"""The report of a build: the content of the program, by method and by bytes. It contains no path and no time."""

from __future__ import annotations

from typing import Any

from etbuild.plan.plan import Plan


def report(plan: Plan, lowering: dict[str, Any], checks: list[dict[str, Any]], notes: list[str]) -> dict[str, Any]:
    """The content of `NAME.report.json`.

    Args:
        plan: The plan. Its `report` decides what is listed.
        lowering: The facts of the lowering. `program` comes from `program_file.program_facts`. `operators` has, for
            each method, the counts of `delegated` operators (by backend and operator) and of `fallback` ones.
            `named_data` has, for each tag, the size in bytes of each blob by key. `constant_methods` has their values.
            `sharing` comes from `weight_sharing.measure`.
        checks: The result of `checks.measure`.
        notes: The result of `checks.notes`. If it is empty, the report has no key for notes.
    """
    program = lowering["program"]
    sizes = {**program["bytes"], "external": lowering["named_data"]}
    return {
        "schema": "executorch-report/v2",
        "name": plan.name,
        "methods": {
            name: _method(program["methods"][name], lowering["operators"][name], plan.report.operators)
            for name in sorted(plan.methods)
        },
        "constant_methods": dict(sorted(lowering["constant_methods"].items())),
        "bytes": sizes if plan.report.blobs else _totals(sizes),
        "sharing": _sharing(lowering["sharing"], plan.report.blobs),
        "checks": checks,
        **({"notes": notes} if notes else {}),
    }


def _method(method: dict[str, Any], operators: dict[str, Any], listed: bool) -> dict[str, Any]:
    facts = {key: method[key] for key in ("inputs", "outputs", "delegates", "memory")}
    return {**facts, "operators": operators} if listed else facts


def _sharing(sharing: dict[str, Any], listed: bool) -> dict[str, Any]:
    return sharing if listed else {key: value for key, value in sharing.items() if key != "duplicates"}


def _totals(sizes: dict[str, Any]) -> dict[str, Any]:
    """The number of blobs and their total size in bytes, for each kind."""

    def total(blobs: Any) -> dict[str, int]:
        listed = list(blobs.values() if isinstance(blobs, dict) else blobs)
        return {"blobs": len(listed), "bytes": sum(listed)}

    external = {tag: total(blobs) for tag, blobs in sizes["external"].items()}
    return {**{kind: total(blobs) for kind, blobs in sizes.items() if kind != "external"}, "external": external}
