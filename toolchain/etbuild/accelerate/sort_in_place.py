"""Puts a method's nodes in order by moving them, and not by copying the graph for each delegate that is cut out.

ExecuTorch calls `legalize_graph` after each partition, which copies every node of the method into a new graph: that is
quadratic in the number of layers. The order that it gives reaches the program, so it is worked out the same way (Kahn's
algorithm over the nodes as they stand); what else a copy renews is renewed too: names that are free again, and the
order in which a node's users are listed.
"""

from __future__ import annotations

import contextlib
import operator
from collections import deque
from collections.abc import Iterator

import torch
from executorch.exir import lowered_backend_module
from torch.fx import Graph, GraphModule, Node
from torch.fx.graph import _Namespace

from etbuild.patching import replaced

# What `torch.fx.passes.tools_common.legalize_graph` puts first: checks of sizes stand before what depends on them.
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
    """Does what `legalize_graph` does, to the graph itself.

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
    """Names and users as in a graph into which the nodes were copied in this order."""
    graph._graph_namespace = _Namespace()
    for node in order:
        node.users.clear()
    for node in order:
        graph._graph_namespace.create_name(node.name, node)
        for read in node.all_input_nodes:
            read.users.setdefault(node)


@contextlib.contextmanager
def sort_in_place() -> Iterator[None]:
    """Partitions are cut out with `sort` inside."""
    with replaced(lowered_backend_module, "legalize_graph", sort):
        yield
