"""Replaces operators that PyTorch does not decompose by core ATen operators.

`graph_changes.py` calls a writer with a function that adds calls to the graph, and the arguments of the operator.
For an operator with several results, the writer returns a tuple, with None for a result that nothing reads.

Limits: `missing-decompositions`, `remainder`, `int64-division`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from etplugins.upstream import volumes
from etplugins.upstream.graph_changes import Add, Writer

_aten = torch.ops.aten

_LONGEST_PRODUCT = 512
"""The longest running product that is replaced: the replacement takes memory for the square of this length."""


def bucketize(add: Add, values: Any, boundaries: Any, *, out_int32: bool = False, right: bool = False) -> Any:
    """Counts for each value the boundaries that are not above it; for `right=False`, the boundaries below it.

    For NaN, all boundaries count, as in PyTorch: a boundary counts unless a comparison is true, and none is.
    """
    return _count(add, boundaries, add(_aten.unsqueeze.default, values, -1), out_int32, right)


def _count(add: Add, boundaries: Any, values: Any, out_int32: bool, right: bool) -> Any:
    comparison = (_aten.gt if right else _aten.ge).Tensor
    is_not_counted = add(comparison, boundaries, values)
    dtype = torch.int32 if out_int32 else torch.int64
    return add(_aten.sum.dim_IntList, add(_aten.logical_not.default, is_not_counted), [-1], dtype=dtype)


def _searchsorted(
    add: Add,
    boundaries: Any,
    values: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: None = None,
) -> Any:
    """Like `bucketize`, with boundaries for each row of values, or the same for all rows."""
    if boundaries.meta["val"].dim() > 1:
        boundaries = add(_aten.unsqueeze.default, boundaries, -2)
    return _count(add, boundaries, add(_aten.unsqueeze.default, values, -1), out_int32, right or side == "right")


def _round(add: Add, tensor: Any, *, decimals: int) -> Any:
    """Rounds to decimals; -1 rounds to tens, as in PyTorch."""
    larger, smaller = (_aten.mul.Scalar, _aten.div.Scalar)[:: 1 if decimals > 0 else -1]
    power = 10.0 ** abs(decimals)
    return add(smaller, add(_aten.round.default, add(larger, tensor, power)), power)


def _remainder(add: Add, tensor: Any, divisor: Any) -> Any:
    """A remainder of integers with the sign of the divisor. ExecuTorch's kernel gives it the sign of the dividend."""
    if isinstance(divisor, torch.fx.Node):
        product = add(_aten.mul.Tensor, add(_aten.div.Tensor_mode, tensor, divisor, rounding_mode="floor"), divisor)
    else:
        product = add(_aten.mul.Scalar, add(_aten.div.Scalar_mode, tensor, divisor, rounding_mode="floor"), divisor)
    return add(_aten.sub.Tensor, tensor, product)


def _divided(add: Add, tensor: Any, divisor: Any) -> tuple[Any, Any]:
    """The quotient of integers that is rounded to zero, and its remainder. ExecuTorch's kernels compute both in
    float64, which has fewer digits than int64. Only the quotient that is rounded down is computed in int64."""
    is_number = not isinstance(divisor, torch.fx.Node)
    divide, multiply = (
        (_aten.div.Scalar_mode, _aten.mul.Scalar) if is_number else (_aten.div.Tensor_mode, _aten.mul.Tensor)
    )
    quotient = add(divide, tensor, divisor, rounding_mode="floor")
    remainder = add(_aten.sub.Tensor, tensor, add(multiply, quotient, divisor))
    if is_number:
        is_negative = add(_aten.ge.Scalar if divisor < 0 else _aten.lt.Scalar, tensor, 0)
    else:
        signs = [add(_aten.lt.Scalar, each, 0) for each in (tensor, divisor)]
        is_negative = add(_aten.logical_xor.default, *signs)
    is_low = add(_aten.logical_and.default, add(_aten.ne.Scalar, remainder, 0), is_negative)
    step = add(_aten.to.dtype, is_low, torch.int64)
    return add(_aten.add.Tensor, quotient, step), add(_aten.sub.Tensor, remainder, add(multiply, step, divisor))


def _quotient(add: Add, tensor: Any, divisor: Any, *, rounding_mode: str) -> Any:
    del rounding_mode
    return _divided(add, tensor, divisor)[0]


def _fmod(add: Add, tensor: Any, divisor: Any) -> Any:
    return _divided(add, tensor, divisor)[1]


def _var_mean(add: Add, tensor: Any, dim: Any = None, *options: Any, **named: Any) -> tuple[Any, Any]:
    dims = list(dim) if dim else list(range(tensor.meta["val"].dim()))
    keep = {"keepdim": named["keepdim"]} if "keepdim" in named else {}
    return add(_aten.var.correction, tensor, dims, *options, **named), add(_aten.mean.dim, tensor, dims, **keep)


def _var_mean_of_dims(add: Add, tensor: Any, dim: Any, unbiased: bool = True, keepdim: bool = False) -> tuple[Any, Any]:
    return _var_mean(add, tensor, dim, correction=int(unbiased), keepdim=keepdim)


def _bilinear(add: Add, first: Any, second: Any, weight: Any, bias: Any = None) -> Any:
    """A bilinear layer: multiplies the first input by the weight's matrices, and the products by the second."""
    matrices, rows, columns = weight.meta["val"].shape
    flat = add(_aten.reshape.default, add(_aten.permute.default, weight, [1, 0, 2]), [rows, matrices * columns])
    products = add(_aten.unflatten.int, add(_aten.matmul.default, first, flat), -1, [matrices, columns])
    result = add(_aten.mul.Tensor, products, add(_aten.unsqueeze.default, second, -2))
    result = add(_aten.sum.dim_IntList, result, [-1])
    return result if bias is None else add(_aten.add.Tensor, result, bias)


def _cumprod(add: Add, tensor: Any, dim: int, *, dtype: Any = None) -> Any:
    """A running product. For each element: the product of a copy of the row in which all later elements are 1."""
    size = tensor.meta["val"].shape[dim]
    last = add(_aten.transpose.int, tensor, dim, -1)
    indexes = add(_aten.arange.default, size, dtype=torch.int64, device=torch.device("cpu"), pin_memory=False)
    is_earlier = add(_aten.le.Tensor, indexes, add(_aten.unsqueeze.default, indexes, -1))
    rows = add(_aten.where.ScalarOther, is_earlier, add(_aten.unsqueeze.default, last, -2), 1)
    return add(_aten.transpose.int, add(_aten.prod.dim_int, rows, -1, dtype=dtype), dim, -1)


def _adaptive_max_pool(add: Add, tensor: Any, sizes: Sequence[int]) -> tuple[Any, None]:
    """The largest elements of windows. The windows of a dimension do not depend on other dimensions, so the dimensions
    can be reduced one after the other."""
    value = tensor.meta["val"]
    if all(size == 1 for size in sizes):
        return add(_aten.amax.default, tensor, list(range(-len(sizes), 0)), True), None
    before = value.shape[-len(sizes) :]
    if value.dim() == 4 and len(sizes) == 2 and not any(old % new for old, new in zip(before, sizes, strict=True)):
        windows = [old // new for old, new in zip(before, sizes, strict=True)]
        return add(_aten.max_pool2d.default, tensor, windows, windows), None
    for dim, (old, new) in enumerate(zip(before, sizes, strict=True), -len(sizes)):
        parts = [(index * old // new, -(-(index + 1) * old // new)) for index in range(new)]
        slices = [add(_aten.slice.Tensor, tensor, dim, start, end) for start, end in parts]
        tensor = add(_aten.cat.default, [add(_aten.amax.default, window, [dim], True) for window in slices], dim)
    return tensor, None


_SUM, _MEAN, _LARGEST = 0, 1, 2
"""The modes of an embedding bag."""
_OPTIONS_OF_BAGS = (False, _SUM, False, None, False, None)
"""The defaults of a bag: scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset, padding_idx."""


def _embedding_bag(add: Add, words: Any, indices: Any, offsets: Any, *options: Any) -> tuple[Any, None, None, None]:
    """Reduces bags of equal size, which `nn.EmbeddingBag` makes from indices in two dimensions."""
    mode, factors = ([*options, *_OPTIONS_OF_BAGS[len(options) :]])[1::2][:2]
    size = offsets.args[2]
    rows = add(_aten.embedding.default, words, add(_aten.reshape.default, indices, [-1, size]))
    if factors is not None:
        factors = add(_aten.reshape.default, factors, [-1, size, 1])
        rows = add(_aten.mul.Tensor, rows, factors)
    if mode == _LARGEST:
        return add(_aten.amax.default, rows, [1]), None, None, None
    return add(_aten.mean.dim if mode == _MEAN else _aten.sum.dim_IntList, rows, [1]), None, None, None


def _results_read(node: Any) -> set[int]:
    """The positions of those results of an operator that something reads."""
    return {user.args[1] for user in node.users if user.target is operator.getitem and user.users}


def _has_known_windows(node: Any) -> bool:
    """Whether an adaptive pooling divides known sizes, and nothing reads the positions of the largest elements."""
    tensor, sizes = node.args
    before = tensor.meta["val"].shape[-len(sizes) :]
    divided_sizes = [*before, *sizes] if any(size != 1 for size in sizes) else []
    return all(isinstance(size, int) for size in divided_sizes) and _results_read(node) <= {0}


def _is_short(node: Any) -> bool:
    """Whether a running product has a known length up to the limit."""
    value = node.args[0].meta["val"]
    size = value.shape[node.args[1]] if value.dim() else None
    return isinstance(size, int) and size <= _LONGEST_PRODUCT


def _are_bags_of_one_size(node: Any) -> bool:
    """Whether all bags of an embedding bag have equally many indices, and no index is padding."""
    offsets = node.args[2]
    steps: Any = getattr(offsets, "args", ()) if getattr(offsets, "target", None) is _aten.arange.start_step else ()
    include_last, padding = [*node.args[3:], *_OPTIONS_OF_BAGS[len(node.args) - 3 :]][4:6]
    if len(steps) != 3 or steps[0] != 0 or not isinstance(steps[2], int):
        return False
    return not include_last and padding is None and _results_read(node) <= {0}


def _is_of_integers(node: Any) -> bool:
    return not node.meta["val"].is_floating_point() and isinstance(node.args[1], int | torch.fx.Node)


def _is_of_int64(node: Any) -> bool:
    """Whether a division is of int64, and its result is rounded to zero."""
    return node.meta["val"].dtype is torch.int64 and node.kwargs.get("rounding_mode", "trunc") == "trunc"


def _shifts(name: str) -> dict[Any, tuple[Writer, Callable[[torch.fx.Node], bool] | None]]:
    """The writers of the operators of a shift, for `x >> 4`, `x >>= y` and `1 >> x`: ExecuTorch has kernels only for
    `bitwise_left_shift` and `bitwise_right_shift` of a tensor."""
    shift, in_place = getattr(_aten, f"bitwise_{name}_shift"), getattr(_aten, f"bitwise_{name}_shift_")
    called, called_in_place = getattr(_aten, f"__{name[0]}shift__"), getattr(_aten, f"__i{name[0]}shift__")

    def of_number(add: Add, number: Any, amounts: Any) -> Any:
        return add(shift.Tensor, add(_aten.full_like.default, amounts, number), amounts)

    def written(operator: Any) -> tuple[Writer, Callable[[torch.fx.Node], bool]]:
        return (lambda add, *inputs: add(operator, *inputs)), _is_of_integers

    return {
        shift.Scalar_Tensor: (of_number, None),
        called.Scalar: written(shift.Tensor_Scalar),
        called.Tensor: written(shift.Tensor),
        called_in_place.Scalar: written(in_place.Tensor_Scalar),
        called_in_place.Tensor: written(in_place.Tensor),
    }


_WRITERS: dict[Any, tuple[Writer, Callable[[torch.fx.Node], bool] | None]] = {
    # for checks of values, such as `torch._check_tensor_all`
    _aten._is_all_true.default: (lambda add, tensor: add(_aten.all.default, tensor), None),
    _aten._is_any_true.default: (lambda add, tensor: add(_aten.any.default, tensor), None),
    _aten.adaptive_max_pool1d.default: (_adaptive_max_pool, _has_known_windows),
    _aten.adaptive_max_pool2d.default: (_adaptive_max_pool, _has_known_windows),
    _aten.adaptive_max_pool3d.default: (_adaptive_max_pool, _has_known_windows),
    _aten.bilinear.default: (_bilinear, None),
    _aten.bucketize.Tensor: (bucketize, None),
    _aten.cumprod.default: (_cumprod, _is_short),
    _aten.div.Scalar_mode: (_quotient, _is_of_int64),
    _aten.div.Tensor_mode: (_quotient, _is_of_int64),
    _aten.embedding_bag.padding_idx: (_embedding_bag, _are_bags_of_one_size),
    _aten.exp2.default: (lambda add, tensor: add(_aten.pow.Scalar, 2.0, tensor), None),
    _aten.special_exp2.default: (lambda add, tensor: add(_aten.pow.Scalar, 2.0, tensor), None),
    _aten.fmod.Scalar: (_fmod, _is_of_int64),
    _aten.fmod.Tensor: (_fmod, _is_of_int64),
    _aten.remainder.Scalar: (_remainder, _is_of_integers),
    _aten.remainder.Tensor: (_remainder, _is_of_integers),
    _aten.round.decimals: (_round, lambda node: node.args[0].meta["val"].is_floating_point()),
    _aten.searchsorted.Tensor: (_searchsorted, lambda node: node.kwargs.get("sorter") is None),
    _aten.var_mean.correction: (_var_mean, None),
    _aten.var_mean.dim: (_var_mean_of_dims, None),
    **_shifts("left"),
    **_shifts("right"),
    **volumes.WRITERS,
}
"""The writer of each operator, and a function that tells whether it suits a node; None: it suits every node."""


def writer(node: torch.fx.Node) -> Writer | None:
    """The writer for the operator of a node; None without one."""
    entry = _WRITERS.get(node.target)
    if entry is None or (entry[1] is not None and not entry[1](node)):
        return None
    return entry[0]
