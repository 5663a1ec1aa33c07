"""Makes a quantized method take and return integers: removes the operators that quantize its inputs and dequantize its
outputs.

ExecuTorch has passes for this (`QuantizeInputs` and `QuantizeOutputs`), which change a lowered program. Here the graph
changes before it is exported again. So each backend gets it, and a program is compared with the same graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from etbuild.errors import BuildError, DocumentPath
from etplugins.edges.facts import DEQUANTIZE, MOVES, QUANTIZE, operator_name
from etplugins.quantize.parts import Io

_OPERATORS = torch.ops.quantized_decomposed
_WAYS = (
    "`io` needs a quantizer that takes {0}: look at its options `operators`, `modules` and `leave_out`, or remove `{1}`"
)


def change_edges(graph_module: GraphModule, io: Io, path: DocumentPath) -> None:
    """Changes the inputs and outputs of a quantized method.

    Args:
        graph_module: The graph, after `convert_pt2e`. It is changed in place.
        io: The types of the inputs and outputs.
        path: The document path of the method.

    Raises:
        BuildError: An input or output is not quantized, or has another type.
    """
    graph = graph_module.graph
    for kind, wanted, change in (("inputs", io.inputs, _change_inputs), ("outputs", io.outputs, _change_outputs)):
        if wanted is not None and not change(graph, wanted, (*path, "io", kind)):
            message = f"the method has no {kind} that are floating-point numbers"
            raise BuildError.at((*path, "io", kind), message, f"remove `{kind}`")
    graph.eliminate_dead_code()
    graph_module.recompile()


def _change_inputs(graph: Graph, wanted: str, path: DocumentPath) -> int:
    """Returns the number of changed inputs."""
    inputs = [(number, node) for number, node in enumerate(graph.find_nodes(op="placeholder")) if _is_float(node)]
    for number, node in inputs:
        found = _first(node)
        if found is None:
            readers = ", ".join(dict.fromkeys(f"`{operator_name(user)}`" for user in node.users)) or "nothing"
            message = f"input {number} is not quantized: {readers} reads it as floating-point numbers"
            raise BuildError.at(path, message, _WAYS.format("the operator after the input", "inputs"))
        settings = _checked(found, wanted, f"input {number}", path)
        with graph.inserting_after(node):
            in_floats = graph.call_function(_OPERATORS.dequantize_per_tensor.default, (node, *settings))
        in_floats.meta = dict(node.meta)
        node.replace_all_uses_with(in_floats, delete_user_cb=lambda user, own=in_floats: user is not own)
        node.meta["val"] = node.meta["val"].to(settings[-1])
        for user in [*in_floats.users]:
            if _is(user, QUANTIZE) and user.args[1:6] == settings:
                user.replace_all_uses_with(node)
    return len(inputs)


def _change_outputs(graph: Graph, wanted: str, path: DocumentPath) -> int:
    """Returns the number of changed outputs."""
    output, changed = graph.output_node(), 0
    for number, node in enumerate([*output.args[0]]):
        if not isinstance(node, Node) or not (_is_float(node) or _is(node, DEQUANTIZE)):
            continue
        source = node
        while operator_name(source) in MOVES and source.all_input_nodes:
            source = source.all_input_nodes[0]
        if not _is(source, DEQUANTIZE) or not isinstance(source.args[0], Node) or source.args[0].op == "get_attr":
            message = f"output {number} is not quantized: `{operator_name(source)}` makes floating-point numbers"
            raise BuildError.at(path, message, _WAYS.format("the operator before the output", "outputs"))
        settings = _checked(source, wanted, f"output {number}", path)
        integers = source.args[0]
        if source is not node:
            with graph.inserting_before(output):
                integers = graph.call_function(_OPERATORS.quantize_per_tensor.default, (node, *settings))
        values = [*output.args[0]]
        values[number] = integers
        output.args = (type(output.args[0])(values),)
        changed += 1
    return changed


def _first(node: Node) -> Node | None:
    """The first operator that quantizes a value, or the same numbers in another order."""
    for user in node.users:
        found = user if _is(user, QUANTIZE) else _first(user) if operator_name(user) in MOVES else None
        if found is not None:
            return found
    return None


def _checked(node: Node, wanted: str, what: str, path: DocumentPath) -> tuple[Any, ...]:
    """The settings of an operator that quantizes or dequantizes with one scale."""
    settings = tuple(node.args[1:6])
    kind = str(settings[-1]).removeprefix("torch.")
    if kind != wanted:
        raise BuildError.at(path, f"{what} is quantized to {kind}, not to {wanted}", f"write `{kind}`")
    return settings


def _is(node: Node, name: str) -> bool:
    """Whether a node quantizes or dequantizes with one scale that is known now."""
    return node.op == "call_function" and operator_name(node) == name and isinstance(node.args[1], float)


def _is_float(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point()
