"""Finds references for delegates that the runtime here lacks, which plug-ins of backends provide."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from etbuild import backends, plugins
from etbuild.errors import InputError
from etbuild.plan.step_plans import LowerPlan
from etplugins.comparison.parts import Tolerance

if TYPE_CHECKING:
    from etplugins.comparison.compare import ComparedMethod

GROUP = "reference"
"""The group of plug-ins that has references, by the names of delegates."""
_OF_TABLES = Tolerance(0.0, 0.0, 0.01)
ONE_CALL = "was compared only with its example inputs, within 1 %: functions of 16-bit integers are tables"
"""The note about methods of `with_tables`."""
BY = "was compared with PyTorch by"
"""Begins a note about a method, before the names of its references."""


class Reference(Protocol):
    """What a plug-in provides: a module that computes what delegates compute.

    Attributes:
        NAME: What it is, for notes.
    """

    NAME: str

    def lowering(self) -> AbstractContextManager[None]:
        """A context in which lowered delegates are what it runs."""

    def running(self) -> AbstractContextManager[Any]:
        """A context in which PyTorch runs lowered methods, and it their delegates. A wrong delegate raises an
        AssertionError, a call whose result the delegate leaves open an ArithmeticError, and what it cannot run another
        exception."""


def elsewhere(delegates: Iterable[str], plan: LowerPlan) -> list[str]:
    """The delegates among these that the runtime here lacks, sorted."""
    return sorted(each for each in delegates if not backends.loads_everywhere(each, plan.used_backends))


def have(delegates: Collection[str]) -> bool:
    """Whether there is a reference for each of these delegates."""
    return all(name in plugins.group(GROUP) and plugins.group(GROUP)[name].is_here for name in delegates)


def load(delegates: Iterable[str]) -> list[Reference]:
    """The references for these delegates, each once.

    Raises:
        InputError: Something that a reference needs is not installed.
    """
    found: dict[str, Reference] = {}
    for name in delegates:
        try:
            reference = plugins.load(GROUP, name)
        except ImportError as error:
            raise InputError.of(f"the reference for {name} is not installed: {error}") from error
        found[reference.NAME] = reference
    return [*found.values()]


def with_tables(methods: Iterable[ComparedMethod]) -> dict[str, ComparedMethod]:
    """The methods in 16-bit integers, by name, with a tolerance unless the manifest has one. Devices interpolate
    between rows of tables, and references do so too: far from the calibration, the error is as large as the result."""
    import torch

    found = [each for each in methods if any(torch.int16 in node.args for node in each.program.graph.nodes)]
    settings = {each.name: each.settings.tolerance or _OF_TABLES for each in found}
    return {each.name: replace(each, settings=each.settings.replace(tolerance=settings[each.name])) for each in found}


def named(references: Iterable[Reference]) -> str:
    """The names of references, for messages."""
    return " and ".join(each.NAME for each in references)


def of_one(plan: LowerPlan, name: str) -> LowerPlan:
    """The plan for lowering one method to its own program, with its weights in the program."""
    return plan.replace(
        methods={name: plan.methods[name]},
        memory_planning={name: plan.memory_planning[name]},
        executorch=plan.executorch.of_method(name),
        named_data={},
        constant_methods={},
        adapters={},
        share_mutable_buffers=False,
    )
