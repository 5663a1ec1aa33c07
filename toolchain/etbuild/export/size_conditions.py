"""The sizes that a method may have: exports for a whole range, and what torch.export assumes of sizes.

torch.export refuses a range if tracing relied on a condition that it cannot simplify, such as
`32 * (n // 10) % (n // 10) == 0`. But it can write such conditions into the graph, as checks in each call. `export`
computes them for each size of the range. If all hold, it removes them: the graph is right for each size from 2.

Tracing computes with symbols in place of sizes. Code that needs a number, or a branch, makes a condition. From then on,
torch.export relies on the condition: `t == 10`, if a loop over the dimension `t` ran ten times. `SizeConditions` notes
the conditions and where they come from: the errors of torch.export name sizes, but no lines of the model.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch._export.utils import _get_shape_env_from_gm
from torch._guards import TracingContext, detect_fake_mode
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.printers import PythonPrinter

from etbuild.exception_text import hints
from etbuild.inputs import source_lines
from etbuild.inputs.user_code import active_finder, of_package
from etbuild.patching import replaced

VIOLATED = "Constraints violated"
"""Words in each message of torch.export about shapes that it refuses."""
_MOST_SIZES = 1 << 20  # combinations of sizes for one condition: Python computes each of them


class TooManySizes(Exception):
    """A range has too many sizes to compute a condition for each of them."""

    def __init__(self) -> None:
        super().__init__(
            f"the model fits the range only on conditions, and more than {_MOST_SIZES:,} sizes are too many to try"
        )


def export(
    root: torch.nn.Module,
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    dynamic_shapes: Any,
    strict: bool,
) -> torch.export.ExportedProgram:
    """Exports a module as `torch.export.export` does, but also accepts ranges that torch.export cannot prove.

    Raises:
        TooManySizes: The conditions hold for all sizes that were tried, and the range has more.
        Exception: The error of torch.export, if it refuses the module, or if a condition does not hold for a size.
    """
    options: dict[str, Any] = {"dynamic_shapes": dynamic_shapes, "strict": strict}
    try:
        return torch.export.export(root, arguments, keywords, **options)
    except Exception as error:  # the errors of torch.export have no common base class
        if VIOLATED not in str(error):
            raise
        program = _with_conditions(root, arguments, keywords, options)
        if program is None or not _holds_for_all(program):
            raise
        return program


def _with_conditions(
    root: torch.nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], options: dict[str, Any]
) -> torch.export.ExportedProgram | None:
    """The exported module with conditions in its graph; None if torch.export still refuses the module."""
    try:
        return torch.export.export(
            root, arguments, keywords, **options, prefer_deferred_runtime_asserts_over_guards=True
        )
    except Exception:  # noqa: BLE001 - the caller raises the error of the usual export
        return None


def _holds_for_all(program: torch.export.ExportedProgram) -> bool:
    """Whether all conditions on the sizes of inputs hold for each size. If so, removes them from the program.

    Raises:
        TooManySizes: The conditions hold for all sizes that were tried, and the range has more.
    """
    sizes = _shape_env(program)
    # A dimension has a symbol for each of its inputs. torch replaces them by one symbol, as it does with equal sizes.
    one_of = {dimension_of(sizes, symbol): symbol for symbol in program.range_constraints}
    checks = [check.expr for check in sizes.deferred_runtime_asserts.get(None, ())]
    conditions = {
        check.xreplace({symbol: one_of.get(dimension_of(sizes, symbol), symbol) for symbol in check.free_symbols})
        for check in checks
    }
    verdicts = [holds(condition, program.range_constraints) for condition in conditions]
    if False in verdicts:
        return False
    if None in verdicts:
        raise TooManySizes
    sizes.deferred_runtime_asserts.pop(None, None)  # otherwise each decomposition writes the checks again
    sizes.settings = dataclasses.replace(sizes.settings, prefer_deferred_runtime_asserts_over_guards=False)
    for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten._assert_scalar.default):
        check = node.args[0].meta["val"] if isinstance(node.args[0], torch.fx.Node) else None
        if isinstance(check, torch.SymBool) and check.node.expr.free_symbols <= program.range_constraints.keys():
            program.graph.erase_node(node)
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()
    return True


def dimension_of(sizes: Any, symbol: Any) -> str:
    """The name of the dimension in the manifest that a symbol stands for. If there is none, the name of the symbol.

    Args:
        sizes: PyTorch's `ShapeEnv` with the symbol.
        symbol: The symbol.
    """
    sources = sizes.var_to_sources.get(symbol)
    return str(sizes._debug_name(sources[0]) if sources else symbol)


def _shape_env(program: torch.export.ExportedProgram) -> Any:
    """PyTorch's `ShapeEnv` with the symbols and conditions of a graph."""
    values = [node.meta.get("val") for node in program.graph.nodes]
    mode = detect_fake_mode([value for value in values if isinstance(value, torch.Tensor)])
    assert mode is not None
    return mode.shape_env


def holds(condition: Any, ranges_of: Mapping[Any, Any]) -> bool | None:
    """Whether a condition holds for all sizes; None if there are more than were tried, and it holds for those.

    Args:
        condition: The condition, an expression of sympy.
        ranges_of: The smallest and the largest value of each symbol in it.
    """
    try:
        if not all(values(condition, ranges_of)):
            return False
    except Exception:  # noqa: BLE001 - a condition that cannot be computed for a size was not shown to hold
        return False
    return None if has_more(condition, ranges_of) else True


def values(expression: Any, ranges_of: Mapping[Any, Any]) -> Iterator[Any]:
    """The values of an expression for all sizes, or for the most that are tried. The arguments are those of `holds`."""
    symbols = sorted(expression.free_symbols, key=str)
    bounds = [(int(ranges_of[symbol].lower), ranges_of[symbol].upper) for symbol in symbols]
    tried_sizes = [range(low, low + int(min(high - low + 1, _MOST_SIZES))) for low, high in bounds]
    code = f"lambda {', '.join(map(str, symbols))}: {PythonPrinter().doprint(expression)}"
    value = eval(code, {"math": math})
    return itertools.starmap(value, itertools.islice(itertools.product(*tried_sizes), _MOST_SIZES))


def has_more(expression: Any, ranges_of: Mapping[Any, Any]) -> bool:
    """Whether there are more sizes than `values` tries."""
    ranges = [ranges_of[symbol] for symbol in expression.free_symbols]
    return bool(math.prod(bounds.upper - bounds.lower + 1 for bounds in ranges) > _MOST_SIZES)


def forget_ranges(program: ExportedProgram) -> None:
    """Removes the ranges of derived dimensions, such as `8*s0`, from the symbols of a loaded program.

    torch 2.13.0 reads each such expression back as a symbol, and then cannot decompose the program ("expected
    sympy.Symbol"). The ranges of the symbols imply these ranges, and `range_constraints` still has them.
    """
    shape_env = _get_shape_env_from_gm(program.graph_module)
    if shape_env is not None:
        for derived in [symbol for symbol in shape_env.var_to_range if not symbol.is_Symbol]:
            del shape_env.var_to_range[derived]


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
            if {*dims} & each.names and each.place and not holds(each.expression, each.ranges):
                places.setdefault(each.place, {})[str(each)] = None
        lines = [f"the export relies on {_listed([*conditions])}{place}" for place, conditions in places.items()]
        return hints(*lines[: source_lines.SHOWN])

    def _note(self, sizes: ShapeEnv, expression: sympy.Expr, frames: list[FrameType]) -> None:
        named = {symbol: sympy.Symbol(dimension_of(sizes, symbol), integer=True) for symbol in expression.free_symbols}
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
