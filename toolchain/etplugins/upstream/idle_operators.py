"""Leaves out operators that return their input as it is, such as a view with the same shape.

ExecuTorch leaves out only `to` and `slice`, and XNNPACK copies inside of its delegates.

Limit: `idle-operators`.
"""

from __future__ import annotations

import torch
from executorch.exir.dialects._ops import ops
from torch.export import ExportedProgram
from torch.fx import Node

_ATEN, _ORDERS = ops.edge.aten, ops.edge.dim_order_ops
_IDLE = {
    _ATEN.alias_copy.default,
    _ATEN.clone.default,
    _ATEN.detach_copy.default,
    _ATEN.expand_copy.default,
    _ATEN.repeat.default,
    _ATEN.slice_copy.Tensor,
    _ATEN.squeeze_copy.dim,
    _ATEN.squeeze_copy.dims,
    _ATEN.view_copy.default,
    _ORDERS._clone_dim_order.default,
    _ORDERS._to_dim_order_copy.default,
}
"""Operators that do nothing if their result has the form of their input."""


def leave_out(program: ExportedProgram) -> None:
    """Makes the readers of such operators read the input.

    An operator stays if the method returns its result, if its input is a buffer that the method writes to, or if its
    input is dequantized: backends look for pairs of such operators.

    Args:
        program: The method in the edge dialect. It is changed in place.
    """
    signature = program.graph_signature
    written = {name for name, of in signature.inputs_to_buffers.items() if of in signature.buffers_to_mutate.values()}
    idle = [node for node in program.graph.nodes if node.target in _IDLE and _is_idle(node, written)]
    for node in idle:
        node.replace_all_uses_with(node.args[0])
        program.graph.erase_node(node)
    if idle:
        program.graph_module.recompile()


def _is_idle(node: Node, written: set[str]) -> bool:
    source = node.args[0]
    if any(user.op == "output" for user in node.users) or source.name in written or "quantize" in str(source.target):
        return False
    return _form(source.meta["val"]) == _form(node.meta["val"])


def _form(value: torch.Tensor) -> object:
    """The dtype, sizes and strides of a tensor. Symbolic ones are compared as expressions, which guards nothing."""
    numbers = [*value.shape, *value.stride()]
    return value.dtype, [each.node.expr if isinstance(each, torch.SymInt) else each for each in numbers]
