"""The section `checks.compare` of a manifest, and the plan of the comparison."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

from etbuild.errors import DocumentPath
from etbuild.plan import kinds
from etbuild.plan.kinds import Identifier
from etbuild.plan.part import Part, Says
from etbuild.plan.step_plans import ExportPlan, LowerPlan

if TYPE_CHECKING:
    from etbuild.manifest.sections import Ranges
    from etbuild.plan.plan import Plan
    from etplugins.comparison import sections


class Tolerance(Part, definition="tolerance", needs=(), minProperties=1):
    """How far an element may be from what the model computes in eager PyTorch (for a quantized method, from its
    quantized graph): atol + rtol * |expected| + of_largest * the largest |expected| of the same output. A key that is
    not there is 0. Without `tolerance`: float32 {rtol: 0.001, of_largest: 0.0001}, smaller floats {rtol: 0.01,
    of_largest: 0.01}, quantized methods {of_largest: 0.05}, integers and booleans exact. For example `{rtol: 0.001,
    atol: 0.0001}`.

    Attributes:
        atol: Absolute tolerance. For example `0.0001`.
        rtol: Tolerance relative to the element. For example `0.001`.
        of_largest: Tolerance relative to the largest element of the output. For example `0.0001`.
    """

    atol: kinds.Positive
    rtol: kinds.Positive
    of_largest: kinds.Positive

    @classmethod
    def of_manifest(cls, given: sections.Tolerance | None) -> Tolerance | None:
        """A tolerance of a manifest. What is not there is 0."""
        if given is None:
            return None
        return cls(float(given.get("atol", 0)), float(given.get("rtol", 0)), float(given.get("of_largest", 0)))


class CompareMethod(Part, minProperties=1):
    """The settings of one method. For example `{ranges: [[0, 255]]}`."""

    tolerance: Tolerance | None = None
    ranges: Annotated[kinds.Ranges, Says(default=...)] = ()
    leave_out: kinds.LeaveOut | None = None


class Compare(Part, minProperties=1):
    """How a build compares what the program computes with the exported methods.

    Attributes:
        work: How many numbers the operators of a method may read and write in the calls after the first one. Calls that
            would need more are left out, or made in smaller sizes. 0: only one call. For example `2000000000`.
        methods: Settings for single methods, by name. For example `{decode: {tolerance: {rtol: 0.01}}}`.
    """

    tolerance: Tolerance | None = None
    leave_out: kinds.LeaveOut | None = None
    work: Annotated[int, Says(minimum=0)] = 200_000_000
    methods: Annotated[dict[str, CompareMethod], Says(minProperties=1, default=...)] = {}


class MethodComparison(Part):
    """How a build compares one method with the exported one.

    Attributes:
        tolerance: The tolerance; None for that of the dtype of each output.
        ranges: The smallest and the largest random number of the first inputs; None for the default.
        leave_out: Why the method is not compared; None if it is.
    """

    tolerance: Tolerance | None
    ranges: tuple[tuple[float, float] | None, ...]
    leave_out: str | None

    @classmethod
    def of_manifest(cls, compare: sections.Compare, method: str) -> MethodComparison:
        """What `checks.compare` says of a method."""
        own = compare.get("methods", {}).get(method, {})
        tolerance = Tolerance.of_manifest(own.get("tolerance", compare.get("tolerance")))
        return cls(tolerance, pairs(own.get("ranges", [])), own.get("leave_out", compare.get("leave_out")))


def pairs(ranges: Ranges) -> tuple[tuple[float, float] | None, ...]:
    """The smallest and the largest number of each range of a manifest."""
    return tuple(None if each is None else (each[0], each[1]) for each in ranges)


class ComparePlan(LowerPlan):
    """What the comparison of the program with the model depends on, in addition to what lowering does.

    Attributes:
        work: How many numbers the operators of a method may read and write in calls after the first one.
        comparisons: How each method is compared, by name.
        exported: What the export depends on: the model for the comparison is made from it.
    """

    DEFINITION = "plan#comparePlan"

    work: int
    comparisons: dict[Identifier, MethodComparison]
    exported: ExportPlan

    @classmethod
    def of(cls, plan: Plan) -> ComparePlan:
        """The part of a plan that the comparison depends on."""
        compare: Any = plan.checks.get("compare", {})
        comparisons = {name: MethodComparison.of_manifest(compare, name) for name in plan.methods}
        work = compare.get("work", Compare.work)
        return plan.lower_plan.as_part(cls, work=work, comparisons=comparisons, exported=plan.export_plan)

    @cached_property
    def data_names(self) -> dict[str, DocumentPath]:
        """The declared inputs that lowering and making the model read, each with the place that names it first."""
        return {**self.exported.data_names, **super().data_names}

    def of_methods(self, names: Collection[str]) -> ComparePlan:
        """The plan for comparing these methods by themselves."""
        exported = self.exported
        if not (exported.keeps_integers or exported.adapters):  # else other methods decide which weights a model has
            own = {name: exported.methods[name] for name in names}
            exported = exported.replace(methods=own, constant_methods={})
        return self.replace(
            methods={name: self.methods[name] for name in names},
            memory_planning={name: each for name, each in self.memory_planning.items() if name in names},
            comparisons={name: self.comparisons[name] for name in names},
            constant_methods={},
            exported=exported,
        )
