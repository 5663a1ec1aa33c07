"""Notes the weights that each blob is made of, so that people see names in place of digests.

A backend packs, permutes or merges weights, and names a blob by its digest. XNNPACK makes each blob of one placeholder
of a graph, so the weight is known there. Constants that passes make of weights have the names of the weights in their
metadata. A blob of another backend has the name of a weight if it has the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from executorch.backends.xnnpack.operators.node_visitor import NodeVisitor
from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch.export import ExportedProgram

from etbuild.lower.weight_sharing import MadeOf, Origin
from etbuild.patching import replaced

_ORIGIN = "etbuild_origin"
_OF_DELEGATE = "_delegate_info_meta"  # ExecuTorch's place for facts of a backend about a delegate


class _Noted(dict[str, set[Origin]]):
    """The weights that XNNPACK made a delegate's blobs of, by key. Other backends write other types there."""


def note_origin(node: torch.fx.Node, origin: Origin) -> None:
    """Notes the weights that a constant is made of, in the metadata of its node."""
    if origin:
        node.meta[_ORIGIN] = origin


def origin(program: ExportedProgram, node: torch.fx.Node) -> Origin:
    """The weights that a placeholder is made of; empty if there are none, or if they are not known."""
    signature = program.graph_signature
    noted: Origin | None = node.meta.get(_ORIGIN)
    name = signature.inputs_to_parameters.get(node.name) or signature.inputs_to_buffers.get(node.name)
    return noted or ((name,) if name else ())


def origin_of_result(program: ExportedProgram, node: torch.fx.Node) -> Origin:
    """The weights of an operator's operands and of the operators before it. Those of its first operand are first."""
    found: dict[str, None] = {}
    waiting, seen = [node], {node}
    while waiting:
        each = waiting.pop()
        found.update(dict.fromkeys(origin(program, each)))
        new = [source for source in reversed(each.all_input_nodes) if source not in seen]
        waiting += new
        seen.update(new)
    return tuple(found)


@contextmanager
def noted() -> Iterator[None]:
    """Within this context, each delegate of XNNPACK knows the weights of its blobs: see `of_delegate`."""
    preprocess, serialize, quantize = (
        XnnpackBackend.preprocess,
        NodeVisitor.get_serialized_buffer_index,
        NodeVisitor.get_quant_params,
    )
    made_of = _Noted()

    def preprocess_and_note(*arguments: Any) -> Any:
        made_of.clear()
        result = preprocess(*arguments)
        setattr(result, _OF_DELEGATE, _Noted(made_of))
        return result

    def note(visitor: NodeVisitor, constants: list[Any], node: torch.fx.Node) -> None:
        if found := origin(visitor.exported_program, node):
            for each in constants:
                made_of.setdefault(each.named_key, set()).add(found)

    def serialize_and_note(visitor: NodeVisitor, tensor: Any, graph: Any, *rest: Any, **named: Any) -> Any:
        before = len(graph.constant_data)
        number = serialize(visitor, tensor, graph, *rest, **named)
        quantized = named.get("quant_params", rest[3] if len(rest) > 3 else None)
        note(visitor, graph.constant_data[before:], tensor if quantized is None else quantized.q_input)
        return number

    def quantize_and_note(visitor: NodeVisitor, quantized: Any, graph: Any, *rest: Any, **named: Any) -> Any:
        before = len(graph.constant_data)
        made = quantize(visitor, quantized, graph, *rest, **named)
        note(visitor, graph.constant_data[before:], _scale(quantized.q_input))
        return made

    with (
        replaced(XnnpackBackend, "preprocess", staticmethod(preprocess_and_note)),
        replaced(NodeVisitor, "get_serialized_buffer_index", serialize_and_note),
        replaced(NodeVisitor, "get_quant_params", quantize_and_note),
    ):
        yield


def _scale(weight: torch.fx.Node) -> torch.fx.Node:
    """The placeholder of the scales of a quantized weight; the weight itself if its scales are computed from others."""
    inputs = [user.all_input_nodes for user in weight.users if "quantize" in str(user.target)]
    return next((scale for first, *others in inputs if first is weight for scale in others[:1]), weight)


def of_delegate(delegate: LoweredBackendModule) -> MadeOf | None:
    """The weights of a delegate's blobs, by key; None if its backend does not tell."""
    found = (delegate.meta or {}).get(_OF_DELEGATE)
    return dict(found) if isinstance(found, _Noted) else None
