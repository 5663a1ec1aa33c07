"""Replaces `dequantize_affine` by operators that ExecuTorch's runtime has.

torchao reads the weights of a weight-only quantized layer with this operator. Some backends take it together with the
layer, but ExecuTorch has no kernel for it. The replacement computes the same result with portable operators. So the
layer runs without a backend, and its weights stay small in the program. Embeddings keep the operator, because
ExecuTorch has its own kernel for quantized embeddings.

Limit: `embeddings`.
"""

from __future__ import annotations

import torch
from executorch.exir import EdgeProgramManager
from executorch.exir.passes.constant_prop_pass import constant_prop_pass
from executorch.exir.passes.quant_fusion_pass import QuantFusionPass, _get_node_value_dict
from executorch.exir.passes.replace_aten_with_edge_pass import aten_to_edge
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from etbuild.lower import blob_weights

# ExecuTorch inserts these operators before a quantized embedding.
_PACKING = (torch.ops.quant_fusion._pack_embedding_weight.default, torch.ops.aten.to.dtype)
_DEQUANTIZE = "torchao.dequantize_affine.default"


def spell_out(program: ExportedProgram) -> None:
    """Replaces each `dequantize_affine` of weights, unless an embedding or a layer with quantized activations reads it.

    Args:
        program: The exported method. Its graph is changed in place.
    """
    graph = program.graph
    for node in list(graph.nodes):
        if str(node.target) == _DEQUANTIZE and _of_weights(node) and not any(map(_takes_quantized, node.users)):
            _inline(graph, node)
    program.graph_module.recompile()


def _of_weights(node: Node) -> bool:
    source, scale = node.args[0], node.args[2]
    if not isinstance(source, Node) or not isinstance(scale, Node):
        return False
    return bool(source.op == "placeholder" and source.meta["val"].dim() == scale.meta["val"].dim() == 2)


def _takes_quantized(user: Node) -> bool:
    if "embedding" in str(user.target):
        return True
    activation = user.all_input_nodes[0] if user.all_input_nodes else None
    return activation is not None and str(activation.target) == _DEQUANTIZE and not _of_weights(activation)


def _inline(graph: Graph, node: Node) -> None:
    """Replaces a `dequantize_affine` node by the operators that compute its result."""
    weights, _, scale, zero_point = node.args[:4]
    sources = [source for source in (weights, scale, zero_point) if isinstance(source, Node)]
    values = [source.meta["val"] for source in sources]
    result = node.meta["val"]
    with result.fake_mode:
        traced: GraphModule = make_fx(lambda *tensors: _dequantize(*tensors).to(result.dtype))(*values)
    known = dict(zip(traced.graph.find_nodes(op="placeholder"), sources, strict=True))
    with graph.inserting_before(node):
        for inner in traced.graph.nodes:
            if inner.op == "call_function":
                known[inner] = graph.node_copy(inner, known.__getitem__)
                provenance = {key: node.meta[key] for key in ("nn_module_stack", "from_node") if key in node.meta}
                known[inner].meta.update(provenance)
            elif inner.op == "output":
                node.replace_all_uses_with(known[inner.args[0]])
    graph.erase_node(node)


def _dequantize(weights: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None = None) -> torch.Tensor:
    """The weights of a layer, float [rows, columns], from int8 [rows, columns]; scale: float [rows, groups]; zero
    point: int8 [rows, groups], None means zero.

    It makes no view of a constant: in named data, a constant is copied before its shape changes (`viewed_weights`).
    """
    values = weights.to(scale.dtype).unflatten(1, (scale.shape[1], -1))
    if zero_point is not None:
        values = values - zero_point.to(scale.dtype).unsqueeze(-1)
    return (values * scale.unsqueeze(-1)).flatten(1)


def fuse_embeddings(edge: EdgeProgramManager) -> None:
    """Replaces quantized embeddings by ExecuTorch's own operators, which read packed weights.

    ExecuTorch's function for this folds all constants of the method. So it would also fold the operators that
    `spell_out` inserted, and store those weights in fp32. This function folds only the packing.
    """
    for name in sorted(edge.methods):
        program = edge.exported_program(name)
        quantized = [node for node in program.graph.nodes if _is_quantized_embedding(node)]
        for node in quantized:
            # `padding_idx` and the options after it matter only for gradients, and ExecuTorch looks for an embedding
            # without them.
            node.args, node.kwargs = node.args[:2], {}
        if quantized:
            import executorch.kernels.quantized  # noqa: F401  # registers the operators

            fuse = QuantFusionPass(_fix_node_meta_val=True, node_value_dict=_get_node_value_dict(program))
            fused, packing = fuse(program.graph_module).graph_module.graph.nodes, set(map(aten_to_edge, _PACKING))
            for node in fused:
                if node.target in packing:
                    blob_weights.note_origin(node, blob_weights.origin_of_result(program, node))
            others = {node.target for node in fused}
            edge._edge_programs[name] = constant_prop_pass(program, others - packing)


def _is_quantized_embedding(node: Node) -> bool:
    sources = node.all_input_nodes
    return "embedding" in str(node.target) and bool(sources) and _DEQUANTIZE in str(sources[0].target)


def register_kernels(edge: EdgeProgramManager) -> None:
    """Registers ExecuTorch's quantized operators if a method calls one outside of its delegates."""
    for name in edge.methods:
        for child in edge.exported_program(name).graph_module.modules():
            if isinstance(child, GraphModule) and any(
                "quantized_decomposed" in str(n.target) for n in child.graph.nodes
            ):
                import executorch.kernels.quantized  # noqa: F401
