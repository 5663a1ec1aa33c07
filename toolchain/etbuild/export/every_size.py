"""Exports a method for a range of sizes although torch.export cannot prove that it fits each of them.

torch.export refuses a range if tracing relied on a condition that it cannot simplify, such as
`32 * (n // 10) % (n // 10) == 0`. It can write such conditions into the graph instead, to be checked in each call. Here
they are computed for each size of the range: if all hold, they leave the graph, which is that of every size from 2.

torch.export assumes that no dynamic size is 0 or 1, and writes no condition for that. `difference` runs such sizes.
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

_MOST_SIZES = 1 << 20  # for each condition, of all dimensions in it together: Python computes it for one size at a time

_MOST_BYTES = 1 << 31  # of weights: to read them for more calls would take long
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


def difference(
    module: torch.nn.Module,
    root: torch.nn.Module,
    program: torch.export.ExportedProgram,
    inputs: tuple[Any, Any],
    dims: Iterable[tuple[Any, ...] | None],
    sources: Iterable[ModuleType],
) -> str | None:
    """Shapes of inputs with a size below 2 for which an exported method gives something else than the module, or None.

    Each dimension that may be so small has such a size while the others have that of the example, and all have one at
    once. The inputs are the first elements of the example, changed if the module takes others. Sizes that the module
    refuses are left out, and modules with weights of more than 2 GiB. Changes of the module are undone.

    Args:
        module: The module that is exported.
        root: The module whose `forward` is the method.
        program: The exported method.
        inputs: Its positional and its keyword example inputs.
        dims: The dimensions of each leaf of the inputs in the form of torch.export; None if all are fixed.
        sources: The Python modules of the user's code.
    """
    contents = {**program.state_dict, **program.constants}.values()
    if sum(each.nbytes for each in contents if isinstance(each, torch.Tensor)) > _MOST_BYTES:
        return None
    for shapes, small in _small_inputs(inputs, list(dims)):
        others = assignments.other_inputs(small)
        calls = ((each, _results(module, root, each, sources)) for each in (others, small))
        given, eager = next((call for call in calls if call[1] is not None), (None, None))
        if given is None or eager is None:
            continue
        if _agree(eager, _results(module, _runnable(program), given, sources)):
            continue
        eager = _results(module, root, inputs, sources)  # if this differs too, the size is not the cause
        if eager is not None and _agree(eager, _results(module, _runnable(program), inputs, sources)):
            return shapes
    return None


def _runnable(program: torch.export.ExportedProgram) -> torch.nn.Module:
    """A module that runs a program and writes to its own buffers: those of the program are not changed."""
    exported: torch.nn.Module = program.module(check_guards=False)
    copies: dict[int, torch.Tensor] = {}
    for part in exported.modules():
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = copies.setdefault(id(buffer), buffer.clone())
    return exported


def _small_inputs(inputs: tuple[Any, Any], dims: list[tuple[Any, ...] | None]) -> Iterator[tuple[str, Any]]:
    """Inputs with sizes below 2, each with the shapes of their tensors as a text."""
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
    """The sizes below 2 of each dimension that is not derived. If one that is derived from it may be below 2: its
    smallest size."""
    found: dict[Any, set[int]] = {}
    for dim in [each for of_leaf in dims for each in of_leaf or () if each is not torch.export.Dim.STATIC]:
        root = getattr(dim, "root", dim)
        sizes = {*range(root.min, min(_ASSUMED, root.max + 1)), *([root.min] if dim.min < _ASSUMED else [])}
        found.setdefault(root, set()).update(sizes)
    return {root: sorted(sizes) for root, sizes in found.items() if sizes}


def _cut(leaf: Any, dims: tuple[Any, ...] | None, chosen: Mapping[Any, int]) -> Any:
    """The first elements of a tensor: as many as chosen for each dimension, or for the one that it is derived from."""
    for position, dim in enumerate(dims or ()):
        root = getattr(dim, "root", dim)
        if dim is not torch.export.Dim.STATIC and root in chosen:
            size = chosen[root] if root is dim else int(dim.fn(chosen[root]))
            leaf = leaf.narrow(position, 0, min(size, leaf.shape[position]))
    return leaf


def _results(
    module: torch.nn.Module, called: Callable[..., Any], inputs: tuple[Any, Any], sources: Iterable[ModuleType]
) -> list[Any] | None:
    """What a call returns; None if it fails."""
    try:
        return assignments.results(module, called, [inputs], sources)[0]
    except PASSING:
        raise
    except Exception:  # noqa: BLE001 - the model may refuse these inputs
        return None


def _agree(eager: list[Any], exported: list[Any] | None) -> bool:
    return exported is not None and assignments.are_close(eager, exported)
