"""Makes the passes that quantizers run before they select operators keep what the method computes."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree
from torchao.quantization.pt2e.quantizer import Quantizer

from etbuild.model.module import named_tensors
from etplugins.quantize import shared_layers


def keeping_graph(quantizer: Quantizer, separates: bool) -> Quantizer:
    """Makes a quantizer keep the names of weights, the numbers that operators of integers take, and the dtypes of
    outputs.

    The passes of some quantizers trace the graph again, and number the weights. Those of others make a tensor of
    float32 of each number, which would turn a sum of integers into floating-point numbers, or compute integers of 64
    bits in 32 bits. A quantizer gets the graph with layers of one reader if it `separates`.
    """
    transform = quantizer.transform_for_annotation

    def transform_for_annotation(model: GraphModule) -> GraphModule:
        if separates:
            shared_layers.separate(model)
        tensors = named_tensors(model)
        names = {id(tensor): name for name, tensor in reversed(tensors.items())}
        arguments = {node: node.args for node in model.graph.nodes if _is_not_float32(node)}
        dtypes = [_dtype(each) for each in pytree.tree_leaves(model.graph.output_node().args)]
        result = transform(model)
        _restore_dtypes(result, dtypes)
        for node in result.graph.nodes:
            old = arguments.get(node, node.args)
            if len(old) == len(node.args):
                node.args = tuple(map(_kept_number, old, node.args))
        for node in result.graph.find_nodes(op="get_attr"):
            value = attribute(result, str(node.target))
            name = names.get(id(value), node.target)
            if name != node.target and _put(result, name, value):
                node.target = name
        return result

    quantizer.transform_for_annotation = transform_for_annotation
    return quantizer


def _restore_dtypes(model: GraphModule, dtypes: list[torch.dtype | None]) -> None:
    """Gives outputs the dtypes that they had."""
    output = model.graph.output_node()
    for value, dtype in zip(pytree.tree_leaves(output.args), dtypes, strict=True):
        if dtype is None or _dtype(value) in (None, dtype):
            continue
        with model.graph.inserting_before(output):
            cast = model.graph.call_function(torch.ops.aten.to.dtype, (value, dtype))
        cast.meta = {**value.meta, "val": value.meta["val"].to(dtype)}
        output.replace_input_with(value, cast)


def _dtype(value: Any) -> torch.dtype | None:
    """The dtype of a node's value; None if it is no tensor, or unknown."""
    tensor = value.meta.get("val") if isinstance(value, Node) else None
    return tensor.dtype if isinstance(tensor, torch.Tensor) else None


def _is_not_float32(node: Node) -> bool:
    return node.op == "call_function" and _dtype(node) not in (None, torch.float32)


def _kept_number(old: Any, new: Any) -> Any:
    """An argument of an operator: the old one if it was a number, and is a tensor now."""
    return old if isinstance(old, (int, float)) and isinstance(new, Node) else new


def attribute(graph_module: GraphModule, name: str) -> Any:
    """What a submodule has under a dotted name; None if it has nothing."""
    prefix, _, leaf = name.rpartition(".")
    return getattr(graph_module.get_submodule(prefix), leaf, None)


def _put(graph_module: GraphModule, name: str, value: torch.Tensor) -> bool:
    """Gives a tensor one more name. Returns False, and changes nothing, if something else has it."""
    owner: torch.nn.Module = graph_module
    *parts, leaf = name.split(".")
    for part in parts:
        if not isinstance(getattr(owner, part, None), torch.nn.Module):
            owner.add_module(part, torch.nn.Module())
        owner = getattr(owner, part)
    if getattr(owner, leaf, value) is not value:
        return False
    if not hasattr(owner, leaf):
        register = owner.register_parameter if isinstance(value, torch.nn.Parameter) else owner.register_buffer
        register(leaf, value)
    return True
