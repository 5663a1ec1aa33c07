"""Keeps memory addresses out of the provenance of nodes: they differ in each process.

A node's `from_node` lists its earlier nodes: their names, their targets and the `id` of their graphs. ExecuTorch
numbers nodes by the name and graph of the first entry, and XNNPACK writes these numbers into programs. Saved exports
contain the entries too.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.fx.traceback import NodeSource

from etbuild.patching import replaced

_FIRST = 1 << 32  # above all numbers in a saved export: `remove_addresses` starts at 0
# In the text of an object, such as `<built-in method conv2d of type object at 0x7f4d0d0cea40>`.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@contextlib.contextmanager
def graphs_numbered() -> Iterator[None]:
    """Identifies graphs by numbers instead of addresses in each `NodeSource` that is made within this context.

    In some processes, Python reuses the address of a deleted graph for a later one. ExecuTorch would then take nodes of
    both graphs for one.
    """
    numbers: WeakKeyDictionary[torch.fx.Graph, int] = WeakKeyDictionary()
    following = itertools.count(_FIRST)
    original = NodeSource.__init__

    def initialize(self: NodeSource, node: torch.fx.Node | None, *arguments: Any, **named: Any) -> None:
        original(self, node, *arguments, **named)
        if node is not None and self.node_info is not None:
            if node.graph not in numbers:
                numbers[node.graph] = next(following)
            self.node_info.graph_id = numbers[node.graph]

    with replaced(NodeSource, "__init__", initialize):
        yield


def remove_addresses(graph_module: torch.fx.GraphModule) -> None:
    """Replaces graph numbers and addresses in the provenance of a method's nodes.

    A graph in which a chain of provenance begins gets a number, in the order of the nodes. Nothing reads the numbers of
    other graphs: they get -1. In a strict export, the text of a target holds the address of a function.
    """
    numbers: dict[int, int] = {}
    seen: dict[int, NodeSource] = {}  # nodes may share sources
    children = [child for child in graph_module.modules() if isinstance(child, torch.fx.GraphModule)]
    waiting = [source for child in children for node in child.graph.nodes for source in node.meta.get("from_node", ())]
    waiting.reverse()
    while waiting:
        source = waiting.pop()
        if id(source) in seen:
            continue
        seen[id(source)] = source
        source._dict = None  # clears the cache of `to_dict`
        if source.node_info is not None:
            first = not source.from_node
            source.node_info.graph_id = numbers.setdefault(source.graph_id, len(numbers)) if first else -1
            source.node_info.target = _ADDRESS.sub("", source.target)
        waiting += reversed(source.from_node)
