"""Compares sets to merge partitions, instead of looking at each node in them.

For each pair of partitions that could become one delegate, XNNPACK's partitioner asks whether a node after one of their
users is in one of them. It visits all later nodes, once for each use of each node. Here, each user is visited once, and
two sets are compared.
"""

from __future__ import annotations

from typing import Any

from executorch.exir.backend.canonical_partitioners.group_partitioner import GroupBasedPartitioner
from torch.fx.passes.utils import fuser_utils

from etbuild.patching import replacing


@replacing(GroupBasedPartitioner, "_can_merge_partitions")
def merge_by_sets(self: Any, one: int, other: int, partitions: dict[int, Any]) -> bool:
    """Whether no path leads out of the two partitions and back in."""
    nodes = {*partitions[one].nodes, *partitions[other].nodes}
    users = {user for node in nodes for user in node.users} - nodes
    if not all(nodes.isdisjoint(self.dependency_viewer.downstreams_of(user)) for user in users):
        return False
    return bool(fuser_utils.validate_partition(list(nodes)))
