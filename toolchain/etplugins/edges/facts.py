"""The edges of quantized methods: inputs and outputs that are integers, and the numbers that these stand for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from etbuild.results import GRAPH_NOTES, Edge

# fmt: off
MOVES = frozenset((
    "alias", "chunk", "clone", "contiguous", "detach", "dropout", "expand", "expand_as", "flatten", "flip",
    "getitem", "movedim", "narrow", "permute", "pixel_shuffle", "pixel_unshuffle", "repeat", "reshape", "select",
    "slice", "split", "split_with_sizes", "squeeze", "swapaxes", "t", "tile", "transpose", "unbind", "unflatten",
    "unsafe_view", "unsqueeze", "view", "view_as",
))
# fmt: on
"""The names of operators that only move numbers."""
QUANTIZE, DEQUANTIZE = "quantize_per_tensor", "dequantize_per_tensor"
Edges = Sequence[Edge | None]
"""For each input or output, its edge; None if it stands for itself."""


def operator_name(node: Node) -> str:
    """The name of a node's operator without its namespace and variant: `conv2d`, `relu` for `aten.relu_.default`."""
    name = getattr(node.target, "__name__", str(node.target)).partition(".")[0]
    return str(name).strip("_").removesuffix("_copy")


def of_inputs(nodes: Iterable[Node]) -> list[Edge | None]:
    """The edges of inputs, which are nodes of a graph."""
    return [_first_edge(node, DEQUANTIZE) if isinstance(node, Node) and _is_integer(node) else None for node in nodes]


def of_outputs(nodes: Iterable[Any]) -> list[Edge | None]:
    """The edges of outputs, which are nodes of a graph or constants."""
    found: list[Edge | None] = []
    for node in nodes:
        while isinstance(node, Node) and operator_name(node) in MOVES and node.all_input_nodes:
            node = node.all_input_nodes[0]
        if isinstance(node, Node) and node.op == "placeholder":  # the output is this input
            found += of_inputs([node])
        else:
            found.append(_edge(node) if isinstance(node, Node) and operator_name(node) == QUANTIZE else None)
    return found


def of_program(program: torch.export.ExportedProgram) -> tuple[Edges, Edges]:
    """The edges of an exported method: those of its inputs and outputs."""
    nodes = {node.name: node for node in program.graph.nodes}
    signature = program.graph_signature
    return tuple(  # type: ignore[return-value]
        read([nodes.get(str(name)) for name in names])
        for read, names in ((of_inputs, signature.user_inputs), (of_outputs, signature.user_outputs))
    )


def ranges(program: torch.export.ExportedProgram) -> list[tuple[float, float] | None]:
    """For each input of an exported method, the least and the largest number to which it is quantized; None if no
    operator quantizes it with a scale that is known."""
    nodes = {node.name: node for node in program.graph.nodes}
    found = [_first_edge(nodes.get(str(name)), QUANTIZE) for name in program.graph_signature.user_inputs]
    return [None if edge is None else (_number(edge, edge["least"]), _number(edge, edge["most"])) for edge in found]


def note(program: torch.export.ExportedProgram) -> None:
    """Notes the edges of a method for the description of its graph: backends replace the operators that show them."""
    found = of_program(program)
    for node in program.graph.find_nodes(op="placeholder") if any(map(any, found)) else ():
        node.meta["custom"] = {**node.meta.get("custom", {}), GRAPH_NOTES: {"edges": [*map(list, found)]}}


def of_graph(graph_module: GraphModule) -> tuple[Edges, Edges]:
    """The edges of a method that torch.export reads as a module."""
    return (
        of_inputs(graph_module.graph.find_nodes(op="placeholder")),
        of_outputs(graph_module.graph.output_node().all_input_nodes),
    )


def arguments(graph_module: GraphModule, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs of a quantized method, made of those that it had before."""
    leaves, form = pytree.tree_flatten(given)
    return pytree.tree_unflatten(quantized(leaves, of_graph(graph_module)[0]), form)  # type: ignore[no-any-return]


def quantized(values: Sequence[Any], edges: Edges) -> list[Any]:
    """Values with integers where a method has edges. Integers stay as they are."""
    return [
        value.mul(1 / edge["scale"]).round().add(edge["zero_point"]).clamp(edge["least"], edge["most"]).to(_dtype(edge))
        if edge is not None and isinstance(value, torch.Tensor) and value.is_floating_point()
        else value
        for value, edge in zip(values, edges, strict=True)
    ]


def limits(given: tuple[float, float] | None, edge: Edge | None) -> tuple[float, float] | None:
    """A range of numbers as a range of integers."""
    if given is None or edge is None:
        return given
    low, high = quantized([torch.tensor(float(each)) for each in given], [edge, edge])
    return float(low), float(high)


def dequantized(values: Sequence[Any], edges: Edges) -> list[Any]:
    """The numbers that the integers at edges stand for."""
    return [
        value.to(torch.float32).sub(edge["zero_point"]).mul(edge["scale"])
        if edge is not None and isinstance(value, torch.Tensor) and not value.is_floating_point()
        else value
        for value, edge in zip(values, edges, strict=True)
    ]


def _number(edge: Edge, integer: int) -> float:
    return (integer - edge["zero_point"]) * edge["scale"]


def _dtype(edge: Edge) -> torch.dtype:
    found: torch.dtype = getattr(torch, edge["dtype"])
    return found


def _is_integer(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype in (torch.int8, torch.uint8, torch.int16)


def _first_edge(node: Node | None, name: str) -> Edge | None:
    """The edge of an input: how the first operator of this name that reads it quantizes or dequantizes it."""
    for user in node.users if node is not None else ():
        found = _edge(user) if operator_name(user) == name else None
        found = _first_edge(user, name) if found is None and operator_name(user) in MOVES else found
        if found is not None:
            return found
    return None


def _edge(node: Node) -> Edge | None:
    """The edge that an operator quantizes or dequantizes with; None if it finds the scale at run time."""
    scale, zero_point, least, most, dtype = [*node.args[1:6], *[None] * 5][:5]
    if not isinstance(scale, float) or not isinstance(zero_point, int) or not isinstance(dtype, torch.dtype):
        return None
    kind = str(dtype).removeprefix("torch.")
    return {"scale": scale, "zero_point": zero_point, "least": int(least), "most": int(most), "dtype": kind}
