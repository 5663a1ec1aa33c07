"""The report of a build: what is in the program, method by method and byte by byte. It holds no path and no time."""

from __future__ import annotations

from typing import Any

from etbuild.plan import Plan


def report(
    plan: Plan,
    program: dict[str, Any],
    operators: dict[str, dict[str, Any]],
    named_data: dict[str, dict[str, int]],
) -> dict[str, Any]:
    """The content of `NAME.report.json`.

    Args:
        plan: The plan.
        program: The facts of the `.pte`, from `program_file.program_facts`.
        operators: By method, the counts of `delegated` operators (by backend and operator) and of `fallback` ones.
        named_data: By tag, the size in bytes of each blob by key.
    """
    methods = program["methods"]
    return {
        "schema": "executorch-report/v1",
        "name": plan["name"],
        "methods": {
            name: {
                "inputs": methods[name]["inputs"],
                "outputs": methods[name]["outputs"],
                "delegates": methods[name]["delegates"],
                "operators": operators[name],
                "memory": methods[name]["memory"],
            }
            for name in sorted(plan["methods"])
        },
        "constant_methods": dict(sorted(plan["constant_methods"].items())),
        "bytes": {**program["bytes"], "external": named_data},
    }
