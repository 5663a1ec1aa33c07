"""Sorts a method's nodes by moving them, instead of copying the graph for each partition.

ExecuTorch calls `legalize_graph` after each partition, which copies every node of the method into a new graph. This
takes quadratic time in the number of layers. The resulting order affects the program, so it is computed the same way
here (Kahn's algorithm over the nodes in their current order). The other effects of a copy are repeated too: names
become free again, and the users of a node are listed in the new order.
"""

from __future__ import annotations

import operator
from collections import deque

import torch
from executorch.exir import lowered_backend_module
from torch.fx import Graph, GraphModule, Node
from torch.fx.graph import _Namespace

from etbuild.patching import replacing

# `torch.fx.passes.tools_common.legalize_graph` puts these first: checks of sizes come before the nodes that depend on
# them.
PRIORITIZED = frozenset(
    {
        operator.add,
        operator.mul,
        operator.sub,
        operator.floordiv,
        operator.truediv,
        operator.mod,
        operator.le,
        operator.lt,
        operator.ge,
        operator.gt,
        operator.eq,
        operator.ne,
        torch.ops.aten.sym_constrain_range.default,
        torch.ops.aten.sym_constrain_range_for_size.default,
        torch.ops.aten._assert_async.msg,
        torch.ops.aten.scalar_tensor.default,
        torch.ops.aten._assert_scalar.default,
    }
)


def sort(module: GraphModule) -> GraphModule:
    """Does the same as `legalize_graph`, but in place. Returns the module.

    Raises:
        RuntimeError: The graph has a cycle.
    """
    graph = module.graph
    order = _order(graph)
    last = graph._root
    for node in order:
        if last._next is not node:
            last.append(node)
        last = node
    _renew(graph, order)
    module.graph = graph
    return module


def _order(graph: Graph) -> list[Node]:
    waiting = dict.fromkeys(graph.nodes, 0)
    for node in graph.nodes:
        for user in node.users:
            waiting[user] += 1
    ready = deque(node for node in graph.nodes if waiting[node] == 0)
    order = []
    while ready:
        node = ready.popleft()
        order.append(node)
        for user in node.users:
            waiting[user] -= 1
            if waiting[user] == 0:
                first = user.op == "call_function" and user.target in PRIORITIZED
                (ready.appendleft if first else ready.append)(user)
    if len(order) < len(waiting):
        stuck = [node for node, count in waiting.items() if count]
        raise RuntimeError(f"Input graph has cycles, unable to add {stuck}")
    return order


def _renew(graph: Graph, order: list[Node]) -> None:
    """Sets names and users as if the nodes had been copied to a new graph in this order."""
    graph._graph_namespace = _Namespace()
    for node in order:
        node.users.clear()
    for node in order:
        graph._graph_namespace.create_name(node.name, node)
        for read in node.all_input_nodes:
            read.users.setdefault(node)


sort_in_place = replacing(lowered_backend_module, "legalize_graph")(sort)
