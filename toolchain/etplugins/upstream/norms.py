"""Replaces layer, group and instance norms, and batch norms without statistics, unless a backend takes them.

ExecuTorch's kernels compute the variance as E[x²]-E[x]², in the dtype of the input, and most add one number after the
other. So they lose the digits of an input with a large mean, give NaN for a constant one, and are wrong for float16 and
for images of a million pixels. Here, the mean is subtracted first. Sums are in float64, and the rest is in float32.

Limits: `norms`, `norms-of-float16`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import torch
from executorch.exir import EdgeProgramManager
from executorch.exir.dialects._ops import ops

from etplugins.upstream import graph_changes
from etplugins.upstream.graph_changes import Add, Writer

_ATEN = ops.edge.aten
_CHANNEL = 1


def write_out(edge: EdgeProgramManager) -> None:
    """Replaces the norms of methods that are not in delegates.

    Args:
        edge: The lowered methods. They are changed in place.
    """
    for name in edge.methods:
        graph_changes.write(edge.exported_program(name), _writer)


def _writer(node: torch.fx.Node) -> Writer | None:
    write = _WRITERS.get(node.target)
    return None if write is None else functools.partial(_with_results_of, node, write)


def _with_results_of(node: torch.fx.Node, write: Writer, add: Add, *inputs: Any) -> tuple[Any, ...]:
    """Writes a norm. Its results have the form of the operator's; None stands for an unread one."""
    dtype = torch.promote_types(inputs[0].meta["val"].dtype, torch.float32)
    results = write(add, *(_converted(add, each, dtype) for each in inputs))
    read = {user.args[1] for user in node.users}
    for number, result in enumerate(results):
        if number not in read and not result.users:
            node.graph.erase_node(result)
    return tuple(
        _like(add, result, value) if number in read else None
        for number, (result, value) in enumerate(zip(results, node.meta["val"], strict=True))
    )


def _layer_norm(add: Add, given: Any, sizes: list[Any], weight: Any, bias: Any, eps: float) -> tuple[Any, Any, Any]:
    """The operator itself, for an input whose mean is 0. It is faster than its parts."""
    mean, centered = _centered(add, given, list(range(-len(sizes), 0)))
    norm = add(_ATEN.native_layer_norm.default, centered, sizes, weight, bias, eps)
    return add(operator.getitem, norm, 0), mean, add(operator.getitem, norm, 2)


def _group_norm(add: Add, given: Any, weight: Any, bias: Any, *options: Any) -> tuple[Any, Any, Any]:
    images, channels, pixels, groups, eps = options
    rows = add(_ATEN.view_copy.default, given, [images, groups, _product(add, channels // groups, pixels)])
    normalized, mean, scale = _normalized(add, rows, [-1], eps)
    normalized = add(_ATEN.view_copy.default, normalized, [_size(add, given, dim) for dim in _dims(given)])
    return _of_channels(add, normalized, weight, bias), mean, scale


def _batch_norm(add: Add, given: Any, weight: Any, bias: Any, *options: Any) -> tuple[Any, Any, Any]:
    *_, eps = options  # without statistics, it is always in training, and the momentum has no effect
    normalized, mean, scale = _normalized(add, given, [dim for dim in _dims(given) if dim != _CHANNEL], eps)
    return _of_channels(add, normalized, weight, bias), mean, scale


_WRITERS: dict[Any, Writer] = {
    _ATEN.native_layer_norm.default: _layer_norm,
    _ATEN.native_group_norm.default: _group_norm,
    _ATEN._native_batch_norm_legit.no_stats: _batch_norm,
}


def _normalized(add: Add, given: Any, dims: list[int], eps: float) -> tuple[Any, Any, Any]:
    """A tensor with the mean 0 and the variance 1 along dimensions, the mean, and 1 divided by the deviation."""
    mean, centered = _centered(add, given, dims)
    variance = _mean(add, add(_ATEN.mul.Tensor, centered, centered), dims)
    scale = add(_ATEN.rsqrt.default, add(_ATEN.add.Scalar, variance, eps))
    scale = _converted(add, scale, given.meta["val"].dtype)
    return add(_ATEN.mul.Tensor, centered, scale), mean, scale


def _centered(add: Add, given: Any, dims: list[int]) -> tuple[Any, Any]:
    mean = _converted(add, _mean(add, given, dims), given.meta["val"].dtype)
    return mean, add(_ATEN.sub.Tensor, given, mean)


def _mean(add: Add, given: Any, dims: list[int]) -> Any:
    """A mean in float64. The kernel of `sum` adds float64 numbers in float32, and that of `mean` prints a line for a
    change of dtype."""
    if given.meta["val"].dtype is torch.float64:
        return add(_ATEN.mean.dim, given, dims, True)
    count = functools.reduce(functools.partial(_product, add), (_size(add, given, dim) for dim in dims))
    return add(_ATEN.div.Scalar, add(_ATEN.sum.dim_IntList, given, dims, True, dtype=torch.float64), count)


def _of_channels(add: Add, normalized: Any, weight: Any, bias: Any) -> Any:
    """Multiplies each channel by its weight, and adds its bias."""
    shape = [-1, *[1] * (len(_dims(normalized)) - _CHANNEL - 1)]
    for operation, factor in ((_ATEN.mul.Tensor, weight), (_ATEN.add.Tensor, bias)):
        if factor is not None:
            normalized = add(operation, normalized, add(_ATEN.view_copy.default, factor, shape))
    return normalized


def _converted(add: Add, given: Any, dtype: torch.dtype, order: Sequence[int] | None = None) -> Any:
    """A tensor in a dtype and an order of its dimensions in memory; by default row by row. Other values stay."""
    value = given.meta["val"] if isinstance(given, torch.fx.Node) else None
    if not isinstance(value, torch.Tensor):
        return given
    order = [*_dims(given)] if order is None else [*order]
    if value.dtype is dtype and [*value.dim_order()] == order:
        return given
    return add(ops.edge.dim_order_ops._to_dim_order_copy.default, given, dtype=dtype, dim_order=order)


def _like(add: Add, result: Any, value: torch.Tensor) -> Any:
    """A result in the form of the operator's result, which lacks the reduced dimensions."""
    if len(_dims(result)) > value.dim():
        dims = [dim for dim in _dims(result) if dim != _CHANNEL] if value.dim() == 1 else [-1]
        result = add(_ATEN.squeeze_copy.dims, result, dims)
    return _converted(add, result, value.dtype, value.dim_order())


def _dims(given: Any) -> range:
    return range(given.meta["val"].dim())


def _size(add: Add, given: Any, dim: int) -> Any:
    """A size of a tensor: a number, or a node if it is dynamic."""
    size = given.meta["val"].shape[dim]
    return size if isinstance(size, int) else add(torch.ops.aten.sym_size.int, given, dim % len(_dims(given)))


def _product(add: Add, one: Any, other: Any) -> Any:
    nodes = isinstance(one, torch.fx.Node) or isinstance(other, torch.fx.Node)
    return add(operator.mul, one, other) if nodes else one * other
