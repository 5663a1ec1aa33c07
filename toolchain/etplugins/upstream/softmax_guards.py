"""Leaves out the guards of an attention where nothing can be masked.

PyTorch decomposes `scaled_dot_product_attention` into a softmax that gives 0 for a row in which all scores are -inf,
also if there is no mask. XNNPACK takes none of the operators that look for such rows.

Limit: `softmax-guards`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from executorch.exir.dialects._ops import ops
from torch.export import ExportedProgram
from torch.fx import Node

_ATEN, _ORDERS = ops.edge.aten, ops.edge.dim_order_ops
_PRODUCTS = {_ATEN.bmm.default, _ATEN.mm.default, _ATEN.matmul.default}
_MOVES = {
    _ATEN.expand_copy.default,
    _ATEN.permute_copy.default,
    _ATEN.unsqueeze_copy.default,
    _ATEN.view_copy.default,
    _ORDERS._clone_dim_order.default,
    _ORDERS._to_dim_order_copy.default,
}
"""Operators that move numbers, or change their dtype."""
_KEEP_ROWS = _MOVES - {_ATEN.permute_copy.default}
"""Those whose rows are rows of their input, if both have the same length."""


def leave_out(program: ExportedProgram, values: Mapping[Node, Any]) -> None:
    """Makes the readers of a guarded softmax read the softmax.

    Args:
        program: The method in the edge dialect. It is changed in place.
        values: The values of nodes that are constant.
    """
    guards = [
        node
        for node in program.graph.find_nodes(op="call_function", target=_ATEN.where.self)
        if _is_guard(node) and not any(user.op == "output" for user in node.users)
    ]
    unneeded = [node for node in guards if _is_never_masked(node.args[2].args[0], values)]
    for node in unneeded:
        node.replace_all_uses_with(node.args[2])
    if unneeded:
        program.graph.eliminate_dead_code()
        program.graph_module.recompile()


def _is_guard(where: Node) -> bool:
    """Whether a node is `where(all(scores == -inf), 0, softmax(scores))`, over the last dimension."""
    condition, _, softmax = where.args
    if getattr(softmax, "target", None) is not _ATEN._softmax.default:
        return False
    scores, dim, *_ = softmax.args
    if dim not in (-1, scores.meta["val"].dim() - 1):
        return False
    for target in (_ATEN.logical_not.default, _ATEN.any.dim, _ATEN.logical_not.default, _ATEN.eq.Scalar):
        if getattr(condition, "target", None) is not target:
            return False
        last, condition = condition, condition.args[0]
    return condition is scores and last.args[1] == -math.inf


def _is_never_masked(scores: Node, values: Mapping[Node, Any], *, may_add: bool = True) -> bool:
    """Whether each row has a score that no mask makes -inf: scores are products, to which one constant mask is added.

    Args:
        scores: The scores.
        values: The values of nodes that are constant.
        may_add: Whether a mask may still be added: what follows keeps the rows, and there is no other mask.
    """
    if scores.target in _PRODUCTS:
        return True
    if scores.target in _MOVES:
        source = scores.args[0]
        keeps_rows = scores.target in _KEEP_ROWS and _last(source) == _last(scores)
        return _is_never_masked(source, values, may_add=may_add and keeps_rows)
    if scores.target is _ATEN.mul.Scalar:
        return math.isfinite(scores.args[1]) and _is_never_masked(scores.args[0], values, may_add=False)
    if scores.target is _ATEN.mul.Tensor:
        return any(
            other in values and bool(values[other].isfinite().all()) and _is_never_masked(one, values, may_add=False)
            for one, other in (scores.args, reversed(scores.args))
        )
    if scores.target is _ATEN.add.Tensor and may_add:
        return any(
            _leaves_some(mask, values) and _is_never_masked(one, values, may_add=False)
            for one, mask in (scores.args, reversed(scores.args))
        )
    return False


def _last(node: Node) -> Any:
    return node.meta["val"].shape[-1]


def _leaves_some(mask: Node, values: Mapping[Node, Any]) -> bool:
    """Whether each row of a mask has a number above -inf."""
    value = values.get(mask)
    return isinstance(value, torch.Tensor) and value.dim() > 0 and bool((value > -math.inf).any(-1).all())
