"""Uses of plans that mypy must reject. If it accepts one, `warn_unused_ignores` reports the comment on that line.

Nothing runs this file. `make lint` checks it.
"""

from __future__ import annotations

from etbuild.plan.parts import NamedData
from etbuild.plan.plan import Plan
from etbuild.plan.step_plans import ExportPlan, LowerPlan, MethodPlan


def lowers(plan: MethodPlan) -> None:
    """Represents a step that lowers one or several methods."""


def emits(plan: LowerPlan) -> None:
    """Represents a step that emits the program."""


def a_step_takes_its_own_plan(whole: Plan, export: ExportPlan, lower: LowerPlan, method: MethodPlan) -> None:
    lowers(method)
    lowers(lower)
    lowers(whole)  # type: ignore[arg-type]
    lowers(export)  # type: ignore[arg-type]
    emits(lower)
    emits(method)  # type: ignore[arg-type]


def a_step_reads_what_is_in_its_plan(whole: Plan, export: ExportPlan, method: MethodPlan) -> None:
    print(whole["name"])  # type: ignore[index]
    print(export.named_data)  # type: ignore[attr-defined]
    print(export.model.weights)  # type: ignore[attr-defined]
    print(method.constant_methods)  # type: ignore[attr-defined]


def plans_do_not_change(lower: LowerPlan) -> None:
    lower.name = "other"  # type: ignore[misc]
    lower.other = "name"  # type: ignore[attr-defined]


def fields_have_types() -> None:
    NamedData(("*",), "1", False)  # type: ignore[arg-type]
    NamedData()  # type: ignore[call-arg]
    NamedData(("*",), None, False, shard=1)  # type: ignore[call-arg]
