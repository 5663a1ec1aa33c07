"""Runs methods with delegates that the runtime here lacks: PyTorch runs what was lowered, and references its delegates.

For this, a method is lowered once more, by itself, to what the references run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch.export import ExportedProgram

from etbuild import switches
from etbuild.errors import BuildError
from etbuild.exception_text import summary
from etbuild.plan.step_plans import LowerPlan
from etplugins.comparison.compare import CannotRun, Undefined
from etplugins.comparison.graph import arguments, copied, outputs_of
from etplugins.comparison.hints import SLOW_KERNELS, slow_work
from etplugins.comparison.references import Reference, elsewhere, load, named, of_one
from etplugins.runtime.program_files import ProgramFiles
from etplugins.runtime.session import laid_out

_MOST_WORK = 1 << 33
"""Numbers that convolutions may read in a call, as `slow_work` counts them. References read them one by one."""


class Lowered:
    """A method that was lowered for references.

    Args:
        plan: How it was lowered.
        name: Its name.
        program: The exported method, with its weights. It is changed.
        references: The references for its delegates.
    """

    def __init__(self, plan: LowerPlan, name: str, program: ExportedProgram, references: Sequence[Reference]) -> None:
        from etbuild.lower.lower_methods import lower_programs

        self._references, self._spec = references, program.call_spec.in_spec
        with ExitStack() as contexts:
            for context in (switches.lowering(), *(each.lowering() for each in references)):
                contexts.enter_context(context)
            edge = lower_programs(of_one(plan, name), {name: program}, {})
        self._module = edge.exported_program(name).module(check_guards=False)

    def call(self, leaves: Sequence[Any]) -> list[Any]:
        """Calls the method. It keeps its state.

        Args:
            leaves: Its inputs, in its order.

        Raises:
            BuildError: A reference refuses a delegate, because it is not valid.
            CannotRun: A reference or PyTorch cannot run the lowered method.
            Undefined: The result of this call is not defined.
        """
        positional, keywords = arguments(self._spec, [*map(copied, leaves)])
        try:
            with torch.no_grad(), ExitStack() as contexts:
                for reference in self._references:
                    contexts.enter_context(reference.running())
                return outputs_of(self._module(*positional, **keywords))
        except ArithmeticError as error:
            raise Undefined(f"{named(self._references)} has no defined result: {summary(error)}") from error
        except AssertionError as error:
            raise BuildError.of(f"{named(self._references)} refuses a delegate: {summary(error)}") from error
        except Exception as error:
            raise CannotRun(f"{named(self._references)} cannot run it: {summary(error)}") from error


class ReferenceSession:
    """What `runtime.session.Session` is, without the runtime.

    Args:
        plan: How the methods were lowered.
        programs: The exported methods, with their weights. They are changed.
        files: The program.

    Raises:
        CannotRun: A method cannot be lowered for the references, or a call would take minutes.
    """

    def __init__(self, plan: LowerPlan, programs: Mapping[str, ExportedProgram], files: ProgramFiles) -> None:
        self._files = files
        self._methods = {}
        for name, program in programs.items():
            if slow_work(program, SLOW_KERNELS) > _MOST_WORK:
                raise CannotRun("a call would take minutes without the device")
            lacking = elsewhere(files.method(name)["delegates"], plan)
            try:
                self._methods[name] = Lowered(plan, name, program, load(lacking))
            except Exception as error:
                raise CannotRun(f"it could not be lowered again: {summary(error)}") from error

    def load(self, method: str) -> None:
        """The method is loaded."""

    def kernels(self, method: str) -> Collection[str]:
        """The kernels of the runtime that are as slow as the references."""
        return SLOW_KERNELS

    def call(self, method: str, inputs: Sequence[Any]) -> list[Any]:
        """Calls a method, as `Session.call` does. Errors are those of `Lowered.call`."""
        outputs = self._methods[method].call(inputs)
        return laid_out(outputs, self._files.method(method)["outputs"])

    def state(self, method: str, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """No buffers: only a program holds them by name."""
        return {}
