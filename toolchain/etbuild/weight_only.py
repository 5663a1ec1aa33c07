"""Weights that are quantized while activations are not, in operators that ExecuTorch's runtime has.

torchao reads such weights with one operator, `dequantize_affine`, which some backends take together with the layer, and
which ExecuTorch has no kernel for otherwise. What it does is spelled out here, so that the layer runs everywhere, from
weights that stay small in the program. An embedding is left as it is: ExecuTorch has a kernel of its own for it.
"""

from __future__ import annotations

import torch
from executorch.exir import EdgeProgramManager
from executorch.exir.pass_base import PassBase
from executorch.exir.passes.quant_fusion_pass import QuantFusionPass
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

_DEQUANTIZE = "torchao.dequantize_affine.default"


def spell_out(program: ExportedProgram) -> None:
    """Replaces `dequantize_affine` of weights, where neither an embedding nor a layer with quantized activations reads
    them."""
    graph = program.graph
    for node in list(graph.nodes):
        if str(node.target) == _DEQUANTIZE and _of_weights(node) and not any(map(_takes_quantized, node.users)):
            _inline(graph, node)
    program.graph_module.recompile()


def _of_weights(node: Node) -> bool:
    source = node.args[0]
    return isinstance(source, Node) and source.op == "placeholder"


def _takes_quantized(user: Node) -> bool:
    if "embedding" in str(user.target):
        return True
    activation = user.all_input_nodes[0] if user.all_input_nodes else None
    return activation is not None and str(activation.target) == _DEQUANTIZE and not _of_weights(activation)


def _inline(graph: Graph, node: Node) -> None:
    """Puts the operators of a node's implementation in its place."""
    sources = [argument for argument in node.args if isinstance(argument, Node)]
    values = [source.meta["val"] for source in sources]

    def call(*tensors: torch.Tensor) -> torch.Tensor:
        given = iter(tensors)
        arguments = [next(given) if isinstance(argument, Node) else argument for argument in node.args]
        result: torch.Tensor = node.target.decompose(*arguments, **node.kwargs)
        return result

    with values[0].fake_mode:
        traced: GraphModule = make_fx(call)(*values)
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


def passes(edge: EdgeProgramManager) -> list[PassBase]:
    """The passes of ExecuTorch that quantized operators outside of delegates need when a program is emitted."""
    namespaces = {
        str(getattr(node.target, "namespace", None))
        for method in edge.methods
        for child in edge.exported_program(method).graph_module.modules()
        if isinstance(child, GraphModule)
        for node in child.graph.nodes
    }
    if not namespaces & {"quantized_decomposed", "torchao"}:
        return []
    import executorch.kernels.quantized  # noqa: F401  # registers the operators that have kernels

    return [QuantFusionPass(_fix_node_meta_val=True)]
