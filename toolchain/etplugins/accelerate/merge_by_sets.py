"""Compares sets to merge partitions, instead of looking at each node in them.

For each pair of partitions that could become one delegate, XNNPACK's partitioner asks whether a node after one of their
users is in one of them. It visits all later nodes, once for each use of each node, and then walks over them once more,
in case the graph has changed since the partitioner was made. For this, it has three sets for each node, with all nodes
before and after it, so that time and memory grow with the square of the number of layers.

Here, a set of nodes is an integer with one bit for each node. Each user is visited once, and two integers are compared.
The sets are made when they are needed. If the graph has changed by then, the partitioner works as before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from executorch.exir.backend.canonical_partitioners import group_partitioner
from executorch.exir.backend.canonical_partitioners.group_partitioner import GroupBasedPartitioner
from torch.fx import GraphModule, Node
from torch.fx.passes.infra import partitioner

from etbuild.patching import replaced

_make, _merge = GroupBasedPartitioner.__init__, GroupBasedPartitioner._merge_partitions
_can_merge = GroupBasedPartitioner._can_merge_partitions


class _Viewer:
    """Replaces `_DependencyViewer`, which has sets of all nodes after and before each node."""

    def __init__(self, module: GraphModule) -> None:
        self._module = module
        self._content = _content(module)
        self._bits = {node: 1 << number for number, (node, _) in enumerate(self._content)}
        self._after: dict[int, int] = {}
        for node, users in reversed(self._content):
            later = 0
            for user in users:
                later |= self._bits[user] | self._after.get(self._bits[user], 0)
            self._after[self._bits[node]] = later
        self._partitions: dict[int, tuple[frozenset[Node], int, int]] = {}

    def downstreams_of(self, node: Node) -> set[Node]:
        """The nodes after a node."""
        after = self._after[self._bits[node]]
        return {each for each, bit in self._bits.items() if bit & after}

    def fits(self) -> bool:
        """Whether the graph is as it was, and each node comes after those that it reads."""
        bits = self._bits
        in_order = all(bits[node] < bits[user] for node, users in self._content for user in users)
        return in_order and self._content == _content(self._module)

    def are_apart(self, one: Any, other: Any) -> bool:
        """Whether no node after a user of two partitions is in one of them."""
        (nodes, users), (others, their_users) = self._of(one), self._of(other)
        nodes |= others
        left = (users | their_users) & ~nodes
        while left:
            user = left & -left
            if self._after[user] & nodes:
                return False
            left ^= user
        return True

    def _of(self, partition: Any) -> tuple[int, int]:
        """The nodes of a partition, and their users."""
        nodes = partition.nodes.keys()
        if partition.id not in self._partitions or self._partitions[partition.id][0] != nodes:
            users = {user for node in nodes for user in node.users}
            self._partitions[partition.id] = frozenset(nodes), self._set(nodes), self._set(users)
        return self._partitions[partition.id][1:]

    def _set(self, nodes: Iterable[Node]) -> int:
        return sum(self._bits[node] for node in nodes)


def _content(module: GraphModule) -> list[tuple[Node, tuple[Node, ...]]]:
    return [(node, tuple(node.users)) for node in module.graph.nodes]


def _can_merge_by_sets(self: Any, one: int, other: int, partitions: dict[int, Any]) -> bool:
    """Whether no path leads out of the two partitions and back in."""
    return bool(self.dependency_viewer.are_apart(partitions[one], partitions[other]))


def _init(self: GroupBasedPartitioner, *arguments: Any, **options: Any) -> None:
    """Makes a partitioner. Its base class would make a viewer that it replaces at once."""
    with replaced(partitioner, "_DependencyViewer", lambda module: None):
        _make(self, *arguments, **options)


def _merge_partitions(self: GroupBasedPartitioner, *arguments: Any) -> None:
    """Merges partitions. The graph does not change in between."""
    viewer, asked = self.dependency_viewer, type(self)._can_merge_partitions
    with contextlib.ExitStack() as stack:
        if asked is _can_merge and isinstance(viewer, _Viewer) and viewer.fits():
            stack.enter_context(replaced(GroupBasedPartitioner, "_can_merge_partitions", _can_merge_by_sets))
        _merge(self, *arguments)


@contextlib.contextmanager
def merge_by_sets() -> Iterator[None]:
    """Returns a context manager in which partitions are merged faster."""
    with (
        replaced(group_partitioner, "_DependencyViewer", _Viewer),
        replaced(GroupBasedPartitioner, "__init__", _init),
        replaced(GroupBasedPartitioner, "_merge_partitions", _merge_partitions),
    ):
        yield
