"""Prevents XNNPACK from treating the operators of a hook as part of a linear layer.

XNNPACK's partitioner assumes that all operators of a `torch.nn.Linear` are the layer itself, and multiplies by its
parameter. But a hook of the layer may compute the weight, or something else, from it. See `docs/upstream.md`.

Limit: `xnnpack-hooks`.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.export import ExportedProgram

_ATEN = torch.ops.aten
_LINEAR, _OTHER = "torch.nn.modules.linear.Linear", "torch.nn.modules.module.Module"  # their names in exports
_QUANTIZED = ("quantized_decomposed", "torchao")
_TRANSPOSED = (_ATEN.t.default, _ATEN.transpose.int, _ATEN.permute.default)
_SHAPED = {
    *_TRANSPOSED,
    *(_ATEN.view.default, _ATEN.reshape.default, _ATEN._unsafe_view.default, _ATEN.view_copy.default),
    *(_ATEN.unsqueeze.default, _ATEN.squeeze.dims, _ATEN.expand.default, _ATEN.sym_size.int, operator.getitem),
}
# The operators of a linear layer, with the positions of their weight and bias among the arguments.
_LAYERS = {_ATEN.linear.default: (1, 2), _ATEN.addmm.default: (2, 0), _ATEN.mm.default: (1, None)}


def keep_hooks_out(program: ExportedProgram) -> None:
    """Changes the module type in the metadata of all operators of a linear layer if some of them come from a hook.

    Args:
        program: An exported method. Only the metadata of its nodes changes.
    """
    layers: dict[str, list[torch.fx.Node]] = {}
    for node in program.graph.nodes:
        stack = node.meta.get("nn_module_stack") if node.op == "call_function" else None
        if stack:
            name, kind = list(stack.values())[-1]
            if kind == _LINEAR or (isinstance(kind, type) and issubclass(kind, torch.nn.Linear)):
                layers.setdefault(name, []).append(node)
    for nodes in layers.values():
        if not _is_one_layer(nodes):
            for node in nodes:
                stack = dict(node.meta["nn_module_stack"])
                last = list(stack)[-1]
                stack[last] = (stack[last][0], _OTHER)
                node.meta["nn_module_stack"] = stack


def _is_one_layer(nodes: list[torch.fx.Node]) -> bool:
    """Whether the operators are one linear layer and nothing else. It may be quantized or decomposed."""
    layers = [node for node in nodes if node.target in _LAYERS]
    if len(layers) != 1:
        return False
    layer = layers[0]
    weight, bias = _LAYERS[layer.target]
    others = [node for node in nodes if node is not layer and node.target not in _SHAPED and not _is_quantization(node)]
    if layer.target is _ATEN.mm.default and len(others) == 1 and others[0].target is _ATEN.add.Tensor:
        others = [] if any(_transpositions(part) == 0 for part in others[0].args) else others
    if others or _transpositions(layer.args[weight]) != (0 if layer.target is _ATEN.linear.default else 1):
        return False
    has_bias = bias is not None and len(layer.args) > bias and layer.args[bias] is not None
    return not has_bias or _transpositions(layer.args[bias]) == 0


def _transpositions(value: Any) -> int | None:
    """How often a weight is transposed before its use; None: the value is computed, or is not a weight."""
    count = 0
    while isinstance(value, torch.fx.Node):
        if value.op in ("placeholder", "get_attr"):
            return count
        if value.target in _TRANSPOSED:
            count += 1
        elif not _is_quantization(value):
            return None
        value = value.args[0] if value.args else None
    return None


def _is_quantization(node: torch.fx.Node) -> bool:
    """Whether an operator quantizes or dequantizes a tensor."""
    return getattr(node.target, "namespace", None) in _QUANTIZED
