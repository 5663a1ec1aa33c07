"""Notes what torch.export assumes about dynamic sizes, and where: its errors name sizes, but no lines of the model.

Tracing computes with symbols in place of sizes. Code that needs a number, or a branch, makes a condition. From then on,
torch.export relies on the condition: `t == 10`, if a loop over the dimension `t` ran ten times.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch._guards import TracingContext
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.printers import PythonPrinter

from etbuild.exception_text import hints
from etbuild.export import every_size
from etbuild.inputs import source_lines
from etbuild.inputs.user_code import active_finder, of_package
from etbuild.patching import replaced

_NOTES = "_log_guard"  # torch calls it with each condition before it relies on it
_RELIES = "eval"  # its first argument then


@contextlib.contextmanager
def watched(note: Callable[[ShapeEnv, sympy.Expr, list[FrameType]], None]) -> Iterator[None]:
    """Within this context, calls a function for each condition on sizes that code relies on, with the frames of the
    functions that run then, the innermost first."""
    usual = getattr(ShapeEnv, _NOTES, None)
    if usual is None:  # other releases of torch
        yield
        return

    def noting(self: ShapeEnv, prefix: str, condition: sympy.Expr, *arguments: Any, **named: Any) -> None:
        if prefix == _RELIES:
            note(self, condition, [frame for frame, _ in traceback.walk_stack(sys._getframe(1))])
        usual(self, prefix, condition, *arguments, **named)

    with replaced(ShapeEnv, _NOTES, noting):
        yield


@dataclass(frozen=True)
class _Condition:
    """A condition, the operator that needs it, and the code that calls the operator.

    Attributes:
        expression: The condition. Its symbols have the names of dimensions, if they are sizes of inputs.
        ranges: The smallest and the largest value of each symbol when it was noted.
        operator: The operator that the model calls; None if Python itself needs the size.
        stack: The lines of the model.
    """

    expression: sympy.Expr
    ranges: Mapping[sympy.Symbol, Any]
    operator: str | None
    stack: traceback.StackSummary

    def __str__(self) -> str:
        return f"`{PythonPrinter().doprint(self.expression)}`"

    @property
    def names(self) -> set[str]:
        return {symbol.name for symbol in self.ranges}

    @property
    def place(self) -> str:
        line = line_of(self.stack)
        return (f" in `{self.operator}`" if self.operator else "") + (f" at {line}" if line else "")


def line_of(stack: traceback.StackSummary) -> source_lines.Line | None:
    """The innermost line of a declared source in a stack; if there is none, the innermost line of an installed file."""
    return source_lines.innermost("".join(stack.format()), active_finder().name_of)


class SizeConditions:
    """The conditions on sizes that torch.export relies on."""

    def __init__(self) -> None:
        self._noted: list[_Condition] = []

    def watched(self) -> contextlib.AbstractContextManager[None]:
        """Notes the conditions of all exports within this context."""
        return watched(self._note)

    def about(self, dims: Collection[str]) -> str | None:
        """For a message: the conditions on dimensions that some sizes break, with the lines that need them.

        It has at most three lines. None if there is no such condition.

        Args:
            dims: The names of the dimensions.
        """
        places: dict[str, dict[str, None]] = {}
        for each in self._noted:
            if {*dims} & each.names and each.place and not every_size.holds(each.expression, each.ranges):
                places.setdefault(each.place, {})[str(each)] = None
        lines = [f"the export relies on {_listed([*conditions])}{place}" for place, conditions in places.items()]
        return hints(*lines[: source_lines.SHOWN])

    def _note(self, sizes: ShapeEnv, expression: sympy.Expr, frames: list[FrameType]) -> None:
        named = {
            symbol: sympy.Symbol(every_size.dimension_of(sizes, symbol), integer=True)
            for symbol in expression.free_symbols
        }
        ranges = {name: sizes.var_to_range.get(symbol) for symbol, name in named.items()}
        condition = _Condition(expression.xreplace(named), ranges, _operator(frames), stack_of_model(frames))
        self._noted.append(condition)


def _listed(conditions: list[str]) -> str:
    more = [f"{len(conditions) - source_lines.SHOWN} more"] if len(conditions) > source_lines.SHOWN else []
    return ", ".join([*conditions[: source_lines.SHOWN], *more])


def of_driver(frame: FrameType) -> bool:
    """Whether a function is the driver's. Does not read its variables: Python would keep them longer."""
    return str(frame.f_globals.get("__name__", "")).startswith(("etbuild.", "etplugins."))


def stack_of_model(frames: list[FrameType]) -> traceback.StackSummary:
    """The lines of the sources among frames. If there are none, the lines of packages that the driver calls."""
    of_sources = [frame for frame in frames if active_finder().name_of(frame.f_code.co_filename) is not None]
    called = itertools.takewhile(lambda frame: not of_driver(frame), frames)
    shown = of_sources or [frame for frame in called if of_package(frame)]
    stack = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in reversed(shown))
    # TorchDynamo runs no frames. It also traces functions that `torch.cond` calls.
    return traceback.StackSummary.from_list([*stack, *TracingContext.extract_stack()])


def _operator(frames: list[FrameType]) -> str | None:
    """The operator that the model calls in these frames. The operator may call others."""
    is_source, found = active_finder().name_of, None
    for frame in frames:
        if is_source(frame.f_code.co_filename) is not None:
            break  # the next frames call the model
        values = () if of_driver(frame) else frame.f_locals.values()
        called = [value for value in values if type(value) is torch._ops.OpOverload]
        found = called[0] if called else found
    return None if found is None else str(found)
