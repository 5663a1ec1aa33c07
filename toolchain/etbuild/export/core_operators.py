"""Writes operators that neither ExecuTorch takes nor PyTorch decomposes with core ATen operators.

It also leaves out aliases that ExecuTorch's kernel refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.export import ExportedProgram

_aten = torch.ops.aten

Add = Callable[..., Any]
"""Adds a call of an operator to a graph and returns its node."""


def _bucketize(add: Add, given: Any, boundaries: Any, *, out_int32: bool = False, right: bool = False) -> Any:
    """The number of boundaries that are not above each value; for `right=False`, that are below it.

    A boundary is counted unless a comparison holds, so that NaN is above all of them, as in PyTorch.
    """
    above = (_aten.gt if right else _aten.ge).Tensor
    later = add(above, boundaries, add(_aten.unsqueeze.default, given, -1))
    dtype = torch.int32 if out_int32 else torch.int64
    return add(_aten.sum.dim_IntList, add(_aten.logical_not.default, later), [-1], dtype=dtype)


_WRITERS: dict[Any, Callable[..., Any]] = {_aten.bucketize.Tensor: _bucketize}


def _is_reformatted(node: torch.fx.Node) -> bool:
    """Whether a node is an alias of a tensor in the format channels_last. ExecuTorch would copy it into a row-major
    tensor, and its kernel refuses to."""
    value = node.meta.get("val")
    return (
        node.target is _aten.alias.default
        and isinstance(value, torch.Tensor)
        and not value.is_contiguous()
        and any(
            value.dim() == rank and value.is_contiguous(memory_format=kind)
            for rank, kind in ((4, torch.channels_last), (5, torch.channels_last_3d))
        )
    )


def write(program: ExportedProgram) -> None:
    """Replaces the operators in a program. It is changed in place."""
    for graph_module in program.graph_module.modules():
        if isinstance(graph_module, torch.fx.GraphModule):
            nodes = [node for node in graph_module.graph.nodes if node.target in _WRITERS or _is_reformatted(node)]
            for node in nodes:
                _replace(program, graph_module.graph, node)
            if nodes:
                graph_module.recompile()


def _replace(program: ExportedProgram, graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    def add(operator: Any, *inputs: Any, **options: Any) -> torch.fx.Node:
        added = graph.call_function(operator, inputs, options)
        values = [each.meta["val"] if isinstance(each, torch.fx.Node) else each for each in inputs]
        added.meta = {**node.meta, "val": operator(*values, **options)}
        return added

    with graph.inserting_before(node):
        write = _WRITERS.get(node.target)
        result = node.args[0] if write is None else write(add, *node.args, **node.kwargs)
    node.replace_all_uses_with(result)
    program.graph_signature.replace_all_uses(node.name, result.name)
    graph.erase_node(node)
