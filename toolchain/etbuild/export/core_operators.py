"""Changes what ExecuTorch does not take as it is, and PyTorch does not decompose: operators, checks, and sizes.

Each operator is a limit in `tests/conformance/upstream_limits.py`.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from torch.export import ExportedProgram

from etbuild.export import missing_operators
from etbuild.export.graph_changes import Add, Writer, change_graphs, write

_aten = torch.ops.aten

_CHECK = _aten._assert_scalar.default
_ITEMS = (_aten.item.default, _aten._local_scalar_dense.default)
_MOST_DIMENSIONS = 6
"""XNNPACK takes the parts of a linear layer whose input has more dimensions, and then lowering fails."""


def _as_batch(operator: Any, add: Add, image: Any, *options: Any, **named: Any) -> Any:
    """A pooling of an image without a batch, which XNNPACK fails to lower: of a batch of one image."""
    pooled = add(operator, add(_aten.unsqueeze.default, image, 0), *options, **named)
    return add(_aten.squeeze.dim, pooled, 0)


def _as_rows(add: Add, given: Any, *weights: Any) -> Any:
    """A linear layer of a tensor with more dimensions than XNNPACK has: of its rows. At most one size is dynamic."""
    sizes = [size if isinstance(size, int) else -1 for size in given.meta["val"].shape[:-1]]
    rows = add(_aten.linear.default, add(_aten.flatten.using_ints, given, 0, -2), *weights)
    return add(_aten.unflatten.int, rows, 0, sizes)


def _crop_and_pad(add: Add, given: Any, amounts: list[int], *options: Any) -> Any:
    """A padding with constants of which some amounts are negative: ExecuTorch's kernel pads, and does not crop.

    The options are the mode, if the operator has one, and the value.
    """
    value = next((option for option in options if isinstance(option, bool | int | float)), 0)
    for index, (low, high) in enumerate(zip(amounts[::2], amounts[1::2], strict=True)):
        if min(low, high) < 0:
            given = add(_aten.slice.Tensor, given, -1 - index, max(-low, 0), high if high < 0 else sys.maxsize)
    rest = [max(amount, 0) for amount in amounts]
    return add(_aten.constant_pad_nd.default, given, rest, value) if any(rest) else given


def _fold(add: Add, given: Any, sizes: list[int], kernel: Any, dilation: Any, padding: list[int], stride: Any) -> Any:
    """A fold of columns to an image: without its padding, which PyTorch would decompose into a negative one."""
    larger = [size + 2 * around for size, around in zip(sizes, padding, strict=True)]
    folded = add(_aten.col2im.default, given, larger, kernel, dilation, [0, 0], stride)
    for dim, around in zip((-2, -1), padding, strict=True):
        folded = add(_aten.slice.Tensor, folded, dim, around, -around or sys.maxsize)
    return folded


def _original(add: Add, given: Any) -> Any:
    return given


def _writer(node: torch.fx.Node) -> Writer | None:
    """What writes an operator anew; None if it stays as it is."""
    missing = missing_operators.writer(node)
    if missing is not None:
        return missing
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None
    if node.target in (_aten.max_pool2d.default, _aten.avg_pool2d.default) and value.dim() == 3:
        return functools.partial(_as_batch, node.target)
    if node.target in (_aten.pad.default, _aten.constant_pad_nd.default):
        return _crop_and_pad if _crops(*node.args[1:3]) else None
    if node.target is _aten.col2im.default:
        return _fold if any(node.args[4]) and _are_known(node.args[1]) else None
    if node.target is _aten.linear.default and value.dim() > _MOST_DIMENSIONS:
        return _as_rows if sum(not isinstance(size, int) for size in value.shape) < 2 else None
    return _original if node.target is _aten.alias.default and _is_channels_last(value) else None


def _crops(amounts: Any, mode: Any = "constant") -> bool:
    """Whether a padding with constants has amounts below 0, and all of them are known."""
    pads_constants = not isinstance(mode, str) or mode == "constant"
    return pads_constants and _are_known(amounts) and min(amounts, default=0) < 0


def _are_known(sizes: Any) -> bool:
    return all(isinstance(size, int) for size in sizes)


def _is_channels_last(value: torch.Tensor) -> bool:
    """Whether a tensor is in this memory format. ExecuTorch would copy an alias of it into a row-major tensor, and its
    kernel refuses to."""
    kind = {4: torch.channels_last, 5: torch.channels_last_3d}.get(value.dim())
    return kind is not None and not value.is_contiguous() and value.is_contiguous(memory_format=kind)


def make_lowerable(program: ExportedProgram) -> None:
    """Removes checks of truths, and replaces operators. Where the limits of sizes say which of two is larger, it puts
    the number in place of their maximum or minimum: `max(0, 1 - seq)` is 0.

    Args:
        program: The method. It is changed in place.
    """
    change_graphs(program, _remove_checks)
    write(program, _writer)
    change_graphs(program, _decide_sizes)


def _remove_checks(graph: torch.fx.Graph) -> bool:
    """Removes checks of tensors of truths, such as those of `torch._check_tensor_all`, and what only they need.

    ExecuTorch removes every check of values, and then cannot compute what a truth was made of for it.
    """
    checks = [node for node in graph.find_nodes(op="call_function", target=_CHECK) if _is_of_truth(node)]
    for node in checks:
        graph.erase_node(node)
    if checks:
        graph.eliminate_dead_code()
    return bool(checks)


def _is_of_truth(check: torch.fx.Node) -> bool:
    """Whether a check needs the only element of a tensor of truths."""
    seen: set[torch.fx.Node] = set()
    left = [check]
    while left:
        node = left.pop()
        if node.target in _ITEMS:
            if node.all_input_nodes[0].meta["val"].dtype is torch.bool:
                return True
        elif node.op == "call_function" and node not in seen:
            left.extend(node.all_input_nodes)
        seen.add(node)
    return False


def _decide_sizes(graph: torch.fx.Graph) -> bool:
    nodes = [node for node in graph.nodes if node.target in (torch.sym_max, torch.sym_min)]
    decided = {node: size for node in nodes if (size := _only_value(node.meta["val"])) is not None}
    for node, size in decided.items():
        for user in [user for user in node.users if user.op != "output"]:
            user.args, user.kwargs = torch.fx.map_arg(
                (user.args, user.kwargs), lambda each, node=node, size=size: size if each is node else each
            )
        if not node.users:
            graph.erase_node(node)
    return bool(decided)


def _only_value(size: int | torch.SymInt) -> int | None:
    """The only value that a size can have; None if it can have several."""
    if isinstance(size, int):
        return size
    limits = size.node.shape_env.bound_sympy(size.node.expr)
    return int(limits.lower) if limits.is_singleton() else None
