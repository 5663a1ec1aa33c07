"""Copies named data before its shape is changed.

ExecuTorch gives a weight in another shape no own memory: it writes the weight a second time, with that shape. It cannot
do that for a weight in named data, and fails.

Limit: `views-of-constants`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from executorch.exir.dialects._ops import ops
from torch.fx.passes.infra.pass_base import PassResult


def copies(shard_of: Callable[[torch.fx.Node], str | None]) -> Callable[[torch.fx.GraphModule], PassResult]:
    """A pass of `to_executorch` that inserts a copy between named data and each change of its shape.

    Args:
        shard_of: Returns the shard of a placeholder; None if it is not named data.
    """
    return functools.partial(_copy, shard_of)


def _copy(shard_of: Callable[[torch.fx.Node], str | None], graph_module: torch.fx.GraphModule) -> PassResult:
    graph = graph_module.graph
    views = [
        node
        for node in graph.find_nodes(op="call_function", target=ops.edge.aten.view_copy.default)
        if node.args[0].op == "placeholder" and shard_of(node.args[0]) is not None
    ]
    for view in views:
        weight = view.args[0]
        with graph.inserting_before(view):
            copy = graph.call_function(ops.edge.dim_order_ops._clone_dim_order.default, (weight,))
        copy.meta = {**view.meta, "val": weight.meta["val"].clone()}
        view.replace_input_with(weight, copy)
    graph_module.recompile()
    return PassResult(graph_module, bool(views))
