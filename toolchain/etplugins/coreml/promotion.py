"""Converts integers before Core ML computes floating-point numbers from them.

PyTorch converts the operands of an operator to the dtype of its result. Core ML's operators, such as `sqrt`, refuse
integers instead.
"""

from __future__ import annotations

from typing import Any

import torch
from executorch.exir.dialects._ops import ops
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.node import map_arg

_COPY = ops.edge.dim_order_ops._to_dim_order_copy.default


def promote(program: ExportedProgram) -> None:
    """Writes the conversions that PyTorch makes into the graph of a method in the edge dialect, in place."""
    for node in [*program.graph.nodes]:
        made = node.meta.get("val")
        if "copy" in str(node.target) or not isinstance(made, torch.Tensor) or not made.is_floating_point():
            continue
        for operand in filter(_is_integer, node.all_input_nodes):
            if not _promotes(node, operand, made):
                continue
            with program.graph.inserting_before(node):
                value = operand.meta["val"]
                order = {"dtype": made.dtype, "dim_order": [*value.dim_order()]}
                converted = program.graph.call_function(_COPY, (operand,), order)
            converted.meta = {**node.meta, "val": value.to(made.dtype)}
            node.replace_input_with(operand, converted)
    program.graph_module.recompile()


def _promotes(node: Node, operand: Node, made: torch.Tensor) -> bool:
    """Whether PyTorch computes the same from an operand in the dtype of the result. It refuses indices in it."""
    operator = getattr(node.target, "_op", None)
    if operator is None or torch.Tag.pointwise in operator.tags:
        return operator is not None

    def value(each: Node) -> Any:
        return each.meta["val"].to(made.dtype) if each is operand else each.meta.get("val")

    try:
        again = operator(*map_arg(node.args, value), **map_arg(node.kwargs, value))
    except (RuntimeError, IndexError, TypeError):
        return False
    return isinstance(again, torch.Tensor) and (again.dtype, again.shape) == (made.dtype, made.shape)


def _is_integer(node: Any) -> bool:
    value = node.meta.get("val")
    is_number = isinstance(value, torch.Tensor) and value.dtype != torch.bool
    return is_number and not value.is_floating_point() and not value.is_complex()
