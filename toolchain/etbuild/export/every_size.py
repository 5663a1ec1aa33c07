"""Exports a method for a range of sizes although torch.export cannot prove that it fits each of them.

torch.export refuses a range if tracing relied on a condition that it cannot simplify, such as
`32 * (n // 10) % (n // 10) == 0`. It can write such conditions into the graph instead, to be checked in each call. Here
they are computed for each size of the range: if all hold, they leave the graph, which is that of every size.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.utils._sympy.printers import PythonPrinter

from etbuild.export import violated_shapes

_MOST_SIZES = 1 << 20  # for each condition, of all dimensions in it together: Python computes it for one size at a time


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
    """Exports a module as `torch.export.export` does, and more often with dynamic shapes.

    Raises the error of torch.export if it refuses the module, or if a condition does not hold for a size; TooManySizes
    if the conditions hold for the sizes that were tried.
    """
    given: dict[str, Any] = {"dynamic_shapes": dynamic_shapes, "strict": strict}
    try:
        return torch.export.export(root, arguments, keywords, **given)
    except Exception as error:  # the errors of torch.export have no common base class
        if violated_shapes.MARK not in str(error):
            raise
        program = _with_conditions(root, arguments, keywords, given)
        if program is None or not _holds_for_all(program):
            raise
        return program


def _with_conditions(
    root: torch.nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], given: dict[str, Any]
) -> torch.export.ExportedProgram | None:
    """The exported module with the conditions in its graph; None if torch.export refuses that too."""
    try:
        return torch.export.export(root, arguments, keywords, **given, prefer_deferred_runtime_asserts_over_guards=True)
    except Exception:  # noqa: BLE001 - the caller tells the error of the usual export
        return None


def _holds_for_all(program: torch.export.ExportedProgram) -> bool:
    """Whether all conditions on the sizes of inputs hold for each size. They are then removed.

    Raises:
        TooManySizes: They hold for all sizes that were tried.
    """
    sizes = _shape_env(program)
    conditions = {check.expr for check in sizes.deferred_runtime_asserts.get(None, ())}
    found = [_holds(each, program.range_constraints) for each in conditions]
    if False in found:
        return False
    if None in found:
        raise TooManySizes
    sizes.deferred_runtime_asserts.pop(None, None)  # else each decomposition would write them again
    sizes.settings = dataclasses.replace(sizes.settings, prefer_deferred_runtime_asserts_over_guards=False)
    for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten._assert_scalar.default):
        checked = node.args[0].meta["val"] if isinstance(node.args[0], torch.fx.Node) else None
        if isinstance(checked, torch.SymBool) and checked.node.expr.free_symbols <= program.range_constraints.keys():
            program.graph.erase_node(node)
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()
    return True


def _shape_env(program: torch.export.ExportedProgram) -> Any:
    """What PyTorch knows about the sizes in a graph."""
    values = [node.meta.get("val") for node in program.graph.nodes]
    mode = detect_fake_mode([each for each in values if isinstance(each, torch.Tensor)])
    assert mode is not None
    return mode.shape_env


def _holds(condition: Any, ranges_of: Mapping[Any, Any]) -> bool | None:
    """Whether a condition holds for all sizes. None if it holds for those that were tried, and there are more.

    Args:
        condition: The condition, an expression of sympy.
        ranges_of: The smallest and the largest value of each symbol in it.
    """
    symbols = sorted(condition.free_symbols, key=str)
    ranges = [ranges_of.get(symbol) for symbol in symbols]
    if None in ranges:
        return False
    lengths = [each.upper - each.lower + 1 for each in ranges if each is not None]
    tried = [
        range(int(each.lower), int(each.lower) + int(min(length, _MOST_SIZES)))
        for each, length in zip(ranges, lengths, strict=True)
        if each is not None
    ]
    try:
        code = f"lambda {', '.join(map(str, symbols))}: {PythonPrinter().doprint(condition)}"
        holds = eval(code, {"math": math})
        if not all(holds(*each) for each in itertools.islice(itertools.product(*tried), _MOST_SIZES)):
            return False
    except Exception:  # noqa: BLE001 - it cannot be computed for a size, and so was not shown to hold
        return False
    return True if math.prod(lengths) <= _MOST_SIZES else None
