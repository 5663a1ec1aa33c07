"""Changes the graphs of a method: replaces some operators by others."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import detect_fake_mode
from torch.export import ExportedProgram

Add = Callable[..., Any]
"""Adds a call of an operator to a graph and returns its node."""
Writer = Callable[..., Any]
"""Gets `Add` and the arguments of an operator, and returns a node with the same result."""


def change_graphs(program: ExportedProgram, change: Callable[[torch.fx.Graph], bool]) -> None:
    """Calls a function for the graph of a method and the graphs that it calls. It returns whether it has changed
    one."""
    for graph_module in program.graph_module.modules():
        if isinstance(graph_module, torch.fx.GraphModule) and change(graph_module.graph):
            graph_module.recompile()


def write(program: ExportedProgram, writer_of: Callable[[torch.fx.Node], Writer | None]) -> None:
    """Replaces operators in a program.

    Args:
        program: The method. It is changed in place.
        writer_of: Returns the writer that replaces an operator; None if the operator stays.
    """

    def change(graph: torch.fx.Graph) -> bool:
        nodes = [(node, writer) for node in graph.nodes if (writer := writer_of(node)) is not None]
        for node, writer in nodes:
            _replace(program, graph, node, writer)
        return bool(nodes)

    change_graphs(program, change)


def _replace(program: ExportedProgram, graph: torch.fx.Graph, node: torch.fx.Node, writer: Writer) -> None:
    mode = detect_fake_mode(node.meta["val"]) or contextlib.nullcontext()

    def add(operator: Any, *inputs: Any, **options: Any) -> torch.fx.Node:
        added = graph.call_function(operator, inputs, options)
        values = torch.fx.map_arg(inputs, lambda each: each.meta["val"])
        with mode, enable_python_dispatcher():  # kernels in C++ would fix dynamic sizes
            added.meta = {**node.meta, "val": operator(*values, **options)}
        return added

    with graph.inserting_before(node):
        result = writer(add, *node.args, **node.kwargs)
    if isinstance(result, tuple):
        for user in list(node.users):
            _put_in_place(program, graph, user, result[user.args[1]])
        graph.erase_node(node)
    else:
        _put_in_place(program, graph, node, result)


def _put_in_place(program: ExportedProgram, graph: torch.fx.Graph, node: torch.fx.Node, result: Any) -> None:
    """Makes all readers read another node; None if nothing reads the old one."""
    if result is not None:
        node.replace_all_uses_with(result)
    if result is not None and graph is program.graph:  # a node of a subgraph may have the name of a method's result
        program.graph_signature.replace_all_uses(node.name, result.name)
    graph.erase_node(node)
