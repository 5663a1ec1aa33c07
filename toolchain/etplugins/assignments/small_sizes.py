"""Runs exported methods and their module for sizes of 0 and 1.

torch.export assumes that no dynamic size is 0 or 1, and writes no condition for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from etbuild.foreign_errors import PASSING
from etbuild.surroundings.library_output import native_messages_off
from etplugins.assignments import assigned

_MOST_BYTES = 1 << 31  # of weights: calls that read more take long
_ASSUMED = 2  # torch.export assumes that each dynamic size is at least this


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
        candidates = (assigned.other_inputs(small), small)
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
    """The results of a call; None if it fails. Kernels of ExecuTorch write a log that nobody needs."""
    with native_messages_off():
        try:
            return assigned.results(module, called, [inputs], sources)[0]
        except PASSING:
            raise
        except Exception:  # noqa: BLE001 - the model may refuse these inputs
            return None


def _agree(eager: list[Any], exported: list[Any] | None) -> bool:
    return exported is not None and assigned.are_close(eager, exported)
