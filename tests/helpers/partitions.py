"""A graph whose groups of operators become delegates that wait for each other."""

from __future__ import annotations

import torch
from executorch.exir.backend.canonical_partitioners.group_partitioner import GroupBasedPartitioner
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.infra.partitioner import Partition
from torch.fx.passes.operator_support import OperatorSupport

Groups = tuple[GraphModule, list[list[Node]]]


def waiting_groups() -> Groups:
    """A module, and groups of its nodes. `near` and `far` are one group. `last` needs `near`, and `far` needs `first`,
    so `first` and `last` cannot be in one delegate."""
    graph = Graph()
    x = graph.placeholder("x")

    def node(name: str, function: object, source: Node) -> Node:
        return graph.create_node("call_function", function, (source,), name=name)

    other, near, first = (node(name, torch.relu, x) for name in ("other", "near", "first"))
    between = node("between", torch.neg, near)
    far, last = node("far", torch.relu, first), node("last", torch.relu, between)
    graph.output((other, far, last))
    return GraphModule(torch.nn.Module(), graph), [[other], [first], [far, near], [last]]


class _Relu(OperatorSupport):
    def is_node_supported(self, submodules: object, node: Node) -> bool:
        del submodules
        return node.target is torch.relu


def partitions(groups: Groups) -> list[Partition]:
    """What ExecuTorch's partitioner makes of them."""
    module, own = groups
    partitioner = GroupBasedPartitioner(module, _Relu(), allows_single_node_partition=True, node_groups=own)
    found: list[Partition] = partitioner.propose_partitions()
    return found
