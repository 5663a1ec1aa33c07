"""Prepares layers for quantizers that have several readers: of their weight, because a method calls them several times,
or of their result.

torchao folds each batch norm into the layer before it. If something else reads the layer's weight or result, it would
compute other numbers. And XNNPACK's quantizer takes a weight in one call only.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import torch
from torch.fx import GraphModule, Node

_NORMS = (torch.ops.aten.batch_norm.default, torch.ops.aten._native_batch_norm_legit_no_training.default)
_BETWEEN = "etbuild_between"
"""The key in the metadata of nodes that are between a layer and a batch norm until `separate`."""


def keep_norms(model: GraphModule) -> None:
    """Keeps torchao from folding the batch norms that it would fold wrongly. `separate` ends this.

    Args:
        model: The graph of a method. It is changed in place.
    """
    norms = [node for node in model.graph.nodes if node.target in _NORMS and isinstance(node.args[0], Node)]
    for norm in [each for each in norms if not _folds(model, each)]:
        with model.graph.inserting_before(norm):
            between = model.graph.call_function(torch.ops.aten.alias.default, norm.args[:1])
        between.meta = {**norm.args[0].meta, _BETWEEN: True}
        norm.update_arg(0, between)


def separate(model: GraphModule) -> None:
    """Gives each reader of a parameter its own node, because quantizers mark the node of a weight as taken.

    Args:
        model: The graph of a method, after torchao has folded batch norms. It is changed in place.
    """
    for node in [each for each in model.graph.nodes if _BETWEEN in each.meta]:
        node.replace_all_uses_with(node.args[0])
        model.graph.erase_node(node)
    for node in [*model.graph.find_nodes(op="get_attr")]:
        value = attrgetter(str(node.target))(model)
        for reader in [*node.users][1:] if isinstance(value, torch.nn.Parameter) else []:
            with model.graph.inserting_before(reader):
                own = model.graph.get_attr(str(node.target))
            own.meta = dict(node.meta)
            reader.replace_input_with(node, own)
    model.recompile()


def _folds(model: GraphModule, norm: Node) -> bool:
    """Whether a batch norm can become a part of the layer before it: the layer has this norm only, in all its calls,
    and weights that are known and have a row for each channel."""
    layer = norm.args[0]
    assert isinstance(layer, Node)
    weights = [each for each in layer.args[1:3] if isinstance(each, Node)]
    if len(layer.users) > 1 or any(each.op != "get_attr" for each in weights):
        return False
    if any(_norm_after(reader) != _norm_after(layer) for each in weights for reader in each.users):
        return False
    rows = 1 if "transpose" in str(layer.target) else 0
    return not weights or attrgetter(str(weights[0].target))(model).shape[rows] == layer.meta["val"].shape[1]


def _norm_after(layer: Node) -> tuple[Any, ...] | None:
    """The arguments of the only reader of a layer's result, a batch norm; None if there is no such norm."""
    readers = [*layer.users]
    return readers[0].args[1:] if len(readers) == 1 and readers[0].target in _NORMS else None
