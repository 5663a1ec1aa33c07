"""Exports a method for a range of sizes although torch.export cannot prove that the method fits the whole range.

torch.export refuses a range if tracing relied on a condition that it cannot simplify, such as
`32 * (n // 10) % (n // 10) == 0`. But it can write such conditions into the graph, as checks in each call. This module
computes them for each size of the range. If all hold, it removes them: the graph is right for each size from 2.

torch.export assumes that no dynamic size is 0 or 1, and writes no condition for that: `difference` runs these sizes.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.utils import _pytree as pytree
from torch.utils._sympy.printers import PythonPrinter

from etbuild.export import assignments, violated_shapes
from etbuild.foreign_errors import PASSING

_MOST_SIZES = 1 << 20  # combinations of sizes for one condition: Python computes each of them

_MOST_BYTES = 1 << 31  # of weights: calls that read more take long
_ASSUMED = 2  # torch.export assumes that each dynamic size is at least this


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


def difference(
    module: torch.nn.Module,
    root: torch.nn.Module,
    program: torch.export.ExportedProgram,
    inputs: tuple[Any, Any],
    dims: Iterable[tuple[Any, ...] | None],
    sources: Iterable[ModuleType],
) -> str | None:
    """Compares an exported method with the module for inputs with a size of 0 or 1.

    Runs the small sizes of each dimension separately, and small sizes of all dimensions at once. The inputs are the
    first elements of the example, with other numbers if the module takes them. Sizes that the module refuses are
    ignored. A module with weights of more than 2 GiB is not run. Changes of the module are undone.

    Args:
        module: The module that is exported.
        root: The module whose `forward` is the method.
        program: The exported method.
        inputs: Its positional and its keyword example inputs.
        dims: The dimensions of each leaf of the inputs in the form of torch.export; None if all are fixed.
        sources: The Python modules of the user's code.

    Returns:
        The shapes of inputs for which the results differ, as a text; None if there are none.
    """
    contents = {**program.state_dict, **program.constants}.values()
    if sum(tensor.nbytes for tensor in contents if isinstance(tensor, torch.Tensor)) > _MOST_BYTES:
        return None
    for shapes, small in _small_inputs(inputs, list(dims)):
        candidates = (assignments.other_inputs(small), small)
        calls = ((candidate, _results(module, root, candidate, sources)) for candidate in candidates)
        accepted, eager = next((call for call in calls if call[1] is not None), (None, None))
        if accepted is None or eager is None:
            continue
        if _agree(eager, _results(module, _runnable(program), accepted, sources)):
            continue
        eager = _results(module, root, inputs, sources)  # if the example differs too, the size is not the cause
        if eager is not None and _agree(eager, _results(module, _runnable(program), inputs, sources)):
            return shapes
    return None


def _runnable(program: torch.export.ExportedProgram) -> torch.nn.Module:
    """A module that runs a program, with copies of its buffers to write to."""
    exported: torch.nn.Module = program.module(check_guards=False)
    copies: dict[int, torch.Tensor] = {}
    for part in exported.modules():
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = copies.setdefault(id(buffer), buffer.clone())
    return exported


def _small_inputs(inputs: tuple[Any, Any], dims: list[tuple[Any, ...] | None]) -> Iterator[tuple[str, Any]]:
    """Inputs with sizes below 2, after the shapes of their tensors as a text."""
    leaves, structure = pytree.tree_flatten(inputs)
    small = _small_sizes(dims)
    single = [{root: size} for root, sizes in small.items() for size in sizes]
    together = (
        [dict(zip(small, sizes, strict=True)) for sizes in zip(*small.values(), strict=False)] if len(small) > 1 else []
    )
    for chosen in (*together, *single):
        cut = [_cut(leaf, of_leaf, chosen) for leaf, of_leaf in zip(leaves, dims, strict=True)]
        shapes = ", ".join(str([*leaf.shape]) for leaf in cut if isinstance(leaf, torch.Tensor))
        yield shapes, pytree.tree_unflatten(cut, structure)


def _small_sizes(dims: list[tuple[Any, ...] | None]) -> dict[Any, list[int]]:
    """The sizes to try for each dimension that is not derived: those below 2, and its smallest size if a dimension
    derived from it may be below 2."""
    sizes_of: dict[Any, set[int]] = {}
    for dim in [dim for of_leaf in dims for dim in of_leaf or () if dim is not torch.export.Dim.STATIC]:
        root = getattr(dim, "root", dim)
        sizes = {*range(root.min, min(_ASSUMED, root.max + 1)), *([root.min] if dim.min < _ASSUMED else [])}
        sizes_of.setdefault(root, set()).update(sizes)
    return {root: sorted(sizes) for root, sizes in sizes_of.items() if sizes}


def _cut(leaf: Any, dims: tuple[Any, ...] | None, chosen: Mapping[Any, int]) -> Any:
    """The first elements of a tensor. `chosen` has the sizes of dimensions that are not derived."""
    for position, dim in enumerate(dims or ()):
        root = getattr(dim, "root", dim)
        if dim is not torch.export.Dim.STATIC and root in chosen:
            size = chosen[root] if root is dim else int(dim.fn(chosen[root]))
            leaf = leaf.narrow(position, 0, min(size, leaf.shape[position]))
    return leaf


def _results(
    module: torch.nn.Module, called: Callable[..., Any], inputs: tuple[Any, Any], sources: Iterable[ModuleType]
) -> list[Any] | None:
    """The results of a call; None if it fails."""
    try:
        return assignments.results(module, called, [inputs], sources)[0]
    except PASSING:
        raise
    except Exception:  # noqa: BLE001 - the model may refuse these inputs
        return None


def _agree(eager: list[Any], exported: list[Any] | None) -> bool:
    return exported is not None and assignments.are_close(eager, exported)
