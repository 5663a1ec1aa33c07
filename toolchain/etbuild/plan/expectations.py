"""Compares what a BUILD file says about a program with its plan."""

from __future__ import annotations

import json

from etbuild.errors import DocumentPath, InputError, Problem
from etbuild.plan.plan import Plan


def check_expectations(plan: Plan, expected: dict[str, list[str] | None]) -> None:
    """Compares what the build rule says about the program with what the manifest says.

    Args:
        plan: The plan.
        expected: For each attribute of the rule (`name`, `methods`, `backends`, `named_data`, `sharded_named_data`) its
            values; None if the rule does not set it.

    Raises:
        InputError: They differ. The error says what to write into the BUILD file.
    """
    actual = {
        "name": [plan.name],
        "methods": sorted(plan.methods),
        "backends": plan.backends,
        "named_data": [tag for tag in plan.tags if tag not in plan.sharded_tags],
        "sharded_named_data": plan.sharded_tags,
    }
    problems = []
    for attribute, values in expected.items():
        if values is not None and sorted(values) != actual[attribute]:
            wanted = json.dumps(actual[attribute][0] if attribute == "name" else actual[attribute])
            path: DocumentPath = {"backends": (), "sharded_named_data": ("named_data",)}.get(attribute, (attribute,))
            said = json.dumps(values[0] if attribute == "name" else sorted(values))
            problems.append(
                Problem(
                    f"the manifest and the target differ: the target's `{attribute}` is {said}",
                    path,
                    f"write `{attribute} = {wanted}` into the BUILD file, or change the manifest",
                )
            )
    if problems:
        raise InputError(problems)
