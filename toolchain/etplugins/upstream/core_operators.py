"""Replaces operators, checks and sizes in a method that ExecuTorch cannot lower and PyTorch cannot decompose.

Limits: `rows-by-tensors`, `aliases-of-formats`, `images-without-batch`, `negative-padding`, `floats-of-sizes`.
"""

from __future__ import annotations

import functools
import math
import operator
import sys
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from etbuild.errors import DocumentPath
from etplugins.upstream import complex_numbers, constant_results, missing_operators
from etplugins.upstream.graph_changes import Add, Writer, change_graphs, write

Ranges = Mapping[sympy.Symbol, ValueRanges[Any]]
"""The least and the largest value of each size."""

_aten = torch.ops.aten

_CHECK = _aten._assert_scalar.default
_ITEMS = (_aten.item.default, _aten._local_scalar_dense.default)
_ROUNDING, _SMALL = (math.ceil, math.floor), 1 << 16
_MOST_DIMENSIONS = 6
"""The most dimensions of a tensor in XNNPACK. Lowering a linear layer fails if its input has more."""


def _as_batch(operator: Any, add: Add, image: Any, *options: Any, **named: Any) -> Any:
    """Pools an image without a batch dimension as a batch of one image, since XNNPACK needs the dimension."""
    pooled = add(operator, add(_aten.unsqueeze.default, image, 0), *options, **named)
    return add(_aten.squeeze.dim, pooled, 0)


def _as_rows(add: Add, tensor: Any, *weights: Any) -> Any:
    """Flattens the input of a linear layer to rows: it has too many dimensions for XNNPACK. At most one size is
    dynamic."""
    sizes = [size if isinstance(size, int) else -1 for size in tensor.meta["val"].shape[:-1]]
    rows = add(_aten.linear.default, add(_aten.flatten.using_ints, tensor, 0, -2), *weights)
    return add(_aten.unflatten.int, rows, 0, sizes)


def _crop_and_pad(add: Add, tensor: Any, amounts: list[int], *options: Any) -> Any:
    """Crops where amounts are negative, and pads with a constant elsewhere: ExecuTorch's padding kernel cannot crop.

    `options` are the mode, if the operator has one, and the value.
    """
    value = next((option for option in options if isinstance(option, bool | int | float)), 0)
    for index, (low, high) in enumerate(zip(amounts[::2], amounts[1::2], strict=True)):
        if min(low, high) < 0:
            tensor = add(_aten.slice.Tensor, tensor, -1 - index, max(-low, 0), high if high < 0 else sys.maxsize)
    paddings = [max(amount, 0) for amount in amounts]
    return add(_aten.constant_pad_nd.default, tensor, paddings, value) if any(paddings) else tensor


def _fold(add: Add, columns: Any, sizes: list[int], kernel: Any, dilation: Any, padding: list[int], stride: Any) -> Any:
    """Folds columns to an image with its padding, and cuts the padding off. PyTorch would decompose the operator's own
    padding into a negative padding."""
    padded_sizes = [size + 2 * amount for size, amount in zip(sizes, padding, strict=True)]
    folded = add(_aten.col2im.default, columns, padded_sizes, kernel, dilation, [0, 0], stride)
    for dim, amount in zip((-2, -1), padding, strict=True):
        folded = add(_aten.slice.Tensor, folded, dim, amount, -amount or sys.maxsize)
    return folded


def _row(add: Add, tensor: Any, dimension: int, index: Any) -> Any:
    """Selects a row by a number in a tensor, as `x[x.argmax()]` does: makes the number a tensor again."""
    row = add(_aten.scalar_tensor.default, index, dtype=torch.int64)
    return add(_aten.index.Tensor, tensor, [None] * (dimension % tensor.meta["val"].dim()) + [row])


def _rounded(node: torch.fx.Node) -> Writer | None:
    """Computes a size that a float multiplies, as in `math.ceil(1.5 * x.shape[0])`, with integers. None if the float is
    no fraction of small integers: a product with it may be rounded before."""
    found = _multiple(node.args[0])
    if found is None or max(abs(found[1].numerator), found[1].denominator) > _SMALL:
        return None
    size, (count, parts) = found[0], found[1].as_integer_ratio()
    if node.target is math.ceil:
        return lambda add, _: add(operator.mul, add(operator.floordiv, add(operator.mul, size, -count), parts), -1)
    return lambda add, _: add(operator.floordiv, add(operator.mul, size, count), parts)


def _multiple(node: Any) -> tuple[torch.fx.Node, Fraction] | None:
    """The size that a float is a multiple of, and the factor; None for another float."""
    if not isinstance(node, torch.fx.Node):
        return None
    if isinstance(node.meta.get("val"), torch.SymInt):
        return node, Fraction(1)
    if node.target is torch.sym_float:
        return _multiple(node.args[0])
    factors = [each for each in node.args if isinstance(each, int | float)]
    if node.target is not operator.mul or len(factors) != 1:
        return None
    [other] = (each for each in node.args if isinstance(each, torch.fx.Node))
    found = _multiple(other)
    return None if found is None else (found[0], found[1] * Fraction(factors[0]))


def _original(add: Add, tensor: Any) -> Any:
    return tensor


def _writer(node: torch.fx.Node) -> Writer | None:
    """The writer that replaces an operator; None if the operator stays."""
    missing = missing_operators.writer(node)
    if missing is not None:
        return missing
    if node.target in _ROUNDING:
        return _rounded(node)
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None
    if node.target in (_aten.max_pool2d.default, _aten.avg_pool2d.default) and value.dim() == 3:
        return functools.partial(_as_batch, node.target)
    if node.target in (_aten.pad.default, _aten.constant_pad_nd.default):
        return _crop_and_pad if _crops(*node.args[1:3]) else None
    if node.target is _aten.col2im.default:
        return _fold if any(node.args[4]) and _are_known(node.args[1]) else None
    if node.target is _aten.select.int:
        return _row if _is_of_any_row(node) and not _is_written_later(node) else None
    if node.target is _aten.linear.default and value.dim() > _MOST_DIMENSIONS:
        return _as_rows if sum(not isinstance(size, int) for size in value.shape) < 2 else None
    return _original if node.target is _aten.alias.default and _is_channels_last(value) else None


def _is_of_any_row(select: torch.fx.Node) -> bool:
    """Whether the index of a row may be outside of the tensor: then PyTorch cannot decompose `select`."""
    tensor, dimension, index = select.args
    if not isinstance(index, torch.fx.Node):
        return False
    size, number = tensor.meta["val"].shape[dimension], index.meta["val"]
    return not (statically_known_true(number < size) and statically_known_true(number >= -size))


def _is_written_later(view: torch.fx.Node) -> bool:
    """Whether something may write to the memory of a view after it. The view then changes, and a copy does not."""
    memory = _memory(view)
    later = [node for node in view.graph.nodes if node > view and getattr(_schema(node), "is_mutable", False)]
    return any(_memory(each) is memory for node in later for each in node.all_input_nodes)


def _memory(node: torch.fx.Node) -> torch.fx.Node:
    """The node whose memory this one may share: itself, or the node that it is a view of."""
    while node.target is operator.getitem or any(each.alias_info for each in getattr(_schema(node), "returns", ())):
        node = node.all_input_nodes[0]
    return node


def _schema(node: torch.fx.Node) -> Any:
    return getattr(node.target, "_schema", None)


def _crops(amounts: Any, mode: Any = "constant") -> bool:
    """Whether a padding with a constant has negative amounts, and no amount is dynamic."""
    pads_constants = not isinstance(mode, str) or mode == "constant"
    return pads_constants and _are_known(amounts) and min(amounts, default=0) < 0


def _are_known(sizes: Any) -> bool:
    return all(isinstance(size, int) for size in sizes)


def _is_channels_last(value: torch.Tensor) -> bool:
    """Whether a tensor is in the memory format channels_last. ExecuTorch would copy its alias into a row-major tensor,
    and the kernel refuses that."""
    kind = {4: torch.channels_last, 5: torch.channels_last_3d}.get(value.dim())
    return kind is not None and not value.is_contiguous() and value.is_contiguous(memory_format=kind)


def make_lowerable(program: ExportedProgram, path: DocumentPath) -> None:
    """Removes checks of booleans, replaces operators, writes complex numbers as pairs, and decides maxima and minima of
    sizes if one of them is it in every call.

    For instance, `max(0, 1 - seq)` becomes 0.

    Args:
        program: The method. It is changed in place.
        path: The place of the method in the manifest, for messages.
    """
    complex_numbers.write_out(program, path)
    change_graphs(program, _remove_checks)
    constant_results.compute(program)
    write(program, _writer)
    change_graphs(program, _remove_floats)
    change_graphs(program, functools.partial(_decide_sizes, ranges=program.range_constraints))


def _remove_checks(graph: torch.fx.Graph) -> bool:
    """Removes checks of boolean tensors, such as those of `torch._check_tensor_all`, and nodes that only checks need.

    ExecuTorch itself removes only the checks, and cannot lower these nodes.
    """
    checks = [node for node in graph.find_nodes(op="call_function", target=_CHECK) if _is_of_boolean(node)]
    for node in checks:
        graph.erase_node(node)
    if checks:
        graph.eliminate_dead_code()
    return bool(checks)


def _is_of_boolean(check: torch.fx.Node) -> bool:
    """Whether a check reads the only element of a boolean tensor."""
    seen: set[torch.fx.Node] = set()
    waiting = [check]
    while waiting:
        node = waiting.pop()
        if node.target in _ITEMS:
            if node.all_input_nodes[0].meta["val"].dtype is torch.bool:
                return True
        elif node.op == "call_function" and node not in seen:
            waiting.extend(node.all_input_nodes)
        seen.add(node)
    return False


def _remove_floats(graph: torch.fx.Graph) -> bool:
    """Removes floats of sizes that nothing reads any more."""
    unread = [node for node in reversed(graph.nodes) if isinstance(node.meta.get("val"), torch.SymFloat)]
    for node in unread:
        if not node.users:
            graph.erase_node(node)
    return bool(unread)


def _decide_sizes(graph: torch.fx.Graph, ranges: Ranges) -> bool:
    nodes = [node for node in graph.nodes if node.target in (torch.sym_max, torch.sym_min)]
    decided = {node: size for node in nodes if (size := _decided(node, ranges)) is not None}
    for node, size in decided.items():
        for user in [user for user in node.users if user.op != "output"]:
            user.args, user.kwargs = torch.fx.map_arg(
                (user.args, user.kwargs), lambda argument, node=node, size=size: size if argument is node else argument
            )
        if not node.users:
            graph.erase_node(node)
    return bool(decided)


def _decided(node: torch.fx.Node, ranges: Ranges) -> int | torch.fx.Node | None:
    """What a maximum or minimum of sizes is in every call: a number, or one of the sizes. None if it can be several.

    PyTorch itself takes each size for 2 or more, also if the method allows 1.
    """
    only = _only_value(node.meta["val"])
    if only is not None:
        return only
    sizes = [each.meta["val"] if isinstance(each, torch.fx.Node) else each for each in node.args]
    values = [each.node.expr if isinstance(each, torch.SymInt) else sympy.Integer(each) for each in sizes]
    sign = 1 if node.target is torch.sym_max else -1
    for each, value in zip(node.args, values, strict=True):
        if all(bound_sympy(sympy.expand(sign * (value - other)), ranges).lower >= 0 for other in values):
            return each
    return None


def _only_value(size: int | torch.SymInt) -> int | None:
    """The only value that a size can have; None if it can have several."""
    if isinstance(size, int):
        return size
    limits = size.node.shape_env.bound_sympy(size.node.expr)
    return int(limits.lower) if limits.is_singleton() else None
