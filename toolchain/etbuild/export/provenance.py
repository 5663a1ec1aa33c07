"""The provenance of nodes without addresses, which differ in each process.

A node's `from_node` names the nodes that it comes from, each by its name, its target and the `id` of its graph.
ExecuTorch identifies a node by the name and graph of the first one. It numbers nodes by that, and XNNPACK writes these
numbers. An export is saved with them too. So neither may depend on where Python put an object.
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

# Above all numbers in a saved export: `remove_addresses` starts at 0.
_FIRST = 1 << 32
# In the text of an object, such as `<built-in method conv2d of type object at 0x7f4d0d0cea40>`.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@contextlib.contextmanager
def graphs_numbered() -> Iterator[None]:
    """Returns a context manager in which `NodeSource` knows a graph by its own number instead of its address.

    Python gives the address of a graph that is gone to a later one, in some processes and not in others. Nodes of both
    graphs would then be one.
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
    """Replaces what differs in each process in the provenance of a method's nodes.

    The first graphs get numbers in the order of the nodes. Nothing reads the graphs between the first and the last, so
    that they get -1. A strict export has functions as targets, whose text holds an address.
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
