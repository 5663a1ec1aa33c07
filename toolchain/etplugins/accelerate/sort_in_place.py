"""Sorts a method's nodes by moving them, instead of copying the graph for each partition.

ExecuTorch calls `legalize_graph` after each partition, which copies every node of the method into a new graph. The time
for this is quadratic in the number of layers. The resulting order affects the program, so `legalize_graph` computes it
here too, with a list in place of the new graph. The other effects of a copy are repeated: names become free again, and
the users of a node are listed in the new order.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import torch
from executorch.exir import lowered_backend_module
from torch.fx import Graph, GraphModule, Node
from torch.fx.graph import _illegal_names, _name_regex, _Namespace
from torch.fx.passes import tools_common

from etbuild.patching import replaced, replacing


class _Order(list[Node]):
    """Replaces the new graph, and gets the nodes themselves in the order of their copies."""

    @property
    def nodes(self) -> list[Node]:
        return self

    def node_copy(self, node: Node, copies: Any) -> Node:
        self.append(node)
        return node


_WITH_LIST = SimpleNamespace(fx=SimpleNamespace(Graph=_Order), ops=torch.ops)


@replacing(lowered_backend_module, "legalize_graph")
def sort_in_place(module: GraphModule) -> GraphModule:
    """Does the same as `legalize_graph`, but in place. Returns the module.

    Raises:
        RuntimeError: The graph has a cycle.
    """
    graph = module.graph
    with replaced(tools_common, "torch", _WITH_LIST):
        order = tools_common.legalize_graph(SimpleNamespace(graph=graph)).graph
    last = graph._root
    for node in order:
        if last._next is not node:
            last.append(node)
        last = node
    _renew(graph, order)
    module.graph = graph
    return module


def _renew(graph: Graph, order: list[Node]) -> None:
    """Sets names and users as if the nodes had been copied to a new graph in this order."""
    graph._graph_namespace = _with_names(order)
    users = {node: node.users for node in order}
    for used_by in users.values():
        used_by.clear()
    for node in order:
        for read in node.all_input_nodes:
            users[read][node] = None


def _with_names(nodes: list[Node]) -> _Namespace:
    """A namespace in which each node has claimed its name, one after the other."""
    namespace, names = _Namespace(), [node.name for node in nodes]
    used = set(names)
    if len(used) < len(names) or not used.isdisjoint(_illegal_names):
        for node, name in zip(nodes, names, strict=True):
            namespace.create_name(name, node)
        return namespace
    # Each gets the name that it claims. What is left to do is to count those with a number at their end.
    counts = namespace._base_count
    for name in names:
        base, number = _split(name)
        counts[base] = counts.get(base, 0) if number is None else number
    namespace._used_names = used
    namespace._obj_to_name = dict(zip(nodes, names, strict=True))
    return namespace


@functools.cache
def _split(name: str) -> tuple[str, int | None]:
    """A name without the number at its end, and the number."""
    found = _name_regex.match(name)
    assert found is not None  # the name of a node
    base, number = found.group(1, 2)
    return base, None if number is None else int(number)
