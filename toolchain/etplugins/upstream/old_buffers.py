"""Copies the old content of buffers that a method returns, or writes into another buffer.

At the end of a method, before it returns, a program writes the new content of all buffers, one after the other. The old
content of a buffer may then be overwritten. And if a buffer gets the content of another one, as in
`self.previous.copy_(self.current)`, ExecuTorch 1.5.1 writes nothing.

Limit: `moved-buffers`.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from executorch.exir import EdgeProgramManager
from executorch.exir.dialects._ops import ops
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind, OutputSpec, TensorArgument


def copy(edge: EdgeProgramManager) -> None:
    """Copies each such buffer, and each such view of a buffer, at the beginning of its method.

    Args:
        edge: The lowered methods. They are changed in place.
    """
    for name in edge.methods:
        _copy_old(edge.exported_program(name))


def _copy_old(program: ExportedProgram) -> None:
    graph, signature = program.graph, program.graph_signature
    names = signature.inputs_to_buffers
    buffers = {node: names[node.name] for node in graph.find_nodes(op="placeholder") if node.name in names}
    output = graph.output_node()
    results, copies = list(output.args[0]), dict[torch.fx.Node, torch.fx.Node]()
    for number, (spec, result) in enumerate(zip(signature.output_specs, results, strict=True)):
        if isinstance(result, torch.fx.Node) and _is_old(result, spec, buffers, signature.buffers_to_mutate.values()):
            results[number] = copies.get(result) or copies.setdefault(result, _copied(graph, result, buffers))
            spec.arg = TensorArgument(results[number].name)
    if copies:
        output.args = (tuple(results),)
        program.graph_module.recompile()


def _is_old(
    result: torch.fx.Node, spec: OutputSpec, buffers: dict[torch.fx.Node, str], written: Collection[str]
) -> bool:
    """Whether a result is the old content of a written buffer, or the content that another buffer gets."""
    if spec.kind is OutputKind.USER_OUTPUT:
        return buffers.get(result) in written
    source = buffers.get(_source(result))
    return spec.kind is OutputKind.BUFFER_MUTATION and source not in (None, spec.target)


def _source(node: torch.fx.Node) -> torch.fx.Node:
    """The node that a view shows. ExecuTorch gives a view no own memory, unless it is a result."""
    while node.op == "call_function" and node.target == ops.edge.aten.view_copy.default:
        node = node.all_input_nodes[0]
    return node


def _copied(graph: torch.fx.Graph, result: torch.fx.Node, buffers: Collection[torch.fx.Node]) -> torch.fx.Node:
    """A copy of a buffer, or of a view of one."""
    last = next(node for node in reversed(graph.nodes) if node.op == "placeholder")
    with graph.inserting_after(last if result in buffers else result):
        copied = graph.call_function(ops.edge.dim_order_ops._clone_dim_order.default, (result,))
    copied.meta = {**result.meta, "val": result.meta["val"].clone()}
    return copied
