"""Exports a method for a range of sizes although torch.export cannot prove that the method fits the whole range.

torch.export refuses a range if tracing relied on a condition that it cannot simplify, such as
`32 * (n // 10) % (n // 10) == 0`. But it can write such conditions into the graph, as checks in each call. This module
computes them for each size of the range. If all hold, it removes them: the graph is right for each size from 2.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.utils._sympy.printers import PythonPrinter

from etbuild.export import violated_shapes

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
        if violated_shapes.MARK not in str(error):
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
