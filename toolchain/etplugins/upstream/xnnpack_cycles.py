"""Cuts delegates that wait for each other. Limit: `xnnpack-cycles`.

ExecuTorch's partitioner merges groups of operators, two at a time. It asks whether a path leaves the two and comes
back, and does not ask about a path that goes through another delegate. So one delegate may need a result of a second
one that needs a result of the first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from executorch.exir.backend.canonical_partitioners.group_partitioner import GroupBasedPartitioner
from torch.fx import Graph, Node
from torch.fx.passes.infra.partitioner import Partition

from etbuild.patching import replaced

Units = Mapping[Node, Hashable]
"""What each node is in: nodes of the same unit are computed at once."""

_propose_partitions = GroupBasedPartitioner.propose_partitions


@contextlib.contextmanager
def no_cycles() -> Iterator[None]:
    """A context in which no delegate waits for a delegate that waits for it."""
    with replaced(GroupBasedPartitioner, "propose_partitions", _propose):
        yield


def _propose(self: Any) -> list[Partition]:
    """The partitions that ExecuTorch proposes. Those that wait for each other are cut into their groups, and each group
    is computed as early as it can be, together with all others of that moment."""
    proposed: list[Partition] = _propose_partitions(self)
    graph: Graph = self.graph_module.graph
    partition_of = {node: partition.id for partition in proposed for node in partition.nodes}
    waiting = _waiting(_inputs(graph, {node: partition_of.get(node, node) for node in graph.nodes}))
    if not waiting:
        return proposed
    units: dict[Node, Hashable] = {}
    for node in graph.nodes:
        own = partition_of.get(node, node)
        if own in waiting and node in partition_of:  # a result of an operator with several is in the operator's group
            own = ("group", self.node_to_group[node]) if node in self.all_nodes_in_groups else units[node.args[0]]
        units[node] = own
    cut = {unit for node, unit in units.items() if partition_of.get(node) in waiting}
    try:
        moments = [*_moments(_inputs(graph, units), cut)]
    except CycleError:  # the groups themselves wait for each other: ExecuTorch's error says so
        return proposed
    first = 1 + max(partition.id for partition in proposed)
    kept = [partition for partition in proposed if partition.id not in waiting]
    return [
        *kept,
        *(
            Partition(id=first + number, nodes=[node for node in graph.nodes if units[node] in moment])
            for number, moment in enumerate(moments)
        ),
    ]


def _inputs(graph: Graph, units: Units) -> dict[Hashable, set[Hashable]]:
    """The units that each unit reads. Each delegate has its own copy of a constant, so inputs of the graph are left
    out."""
    computed = {node: units[node] for node in graph.nodes if node.op != "placeholder"}
    found: dict[Hashable, set[Hashable]] = {unit: set() for unit in computed.values()}
    for node, unit in computed.items():
        found[unit].update(computed[each] for each in node.all_input_nodes if each in computed)
        found[unit].discard(unit)
    return found


def _waiting(inputs: Mapping[Hashable, set[Hashable]]) -> set[Hashable]:
    """The units that wait for each other, and those between them."""
    users: dict[Hashable, set[Hashable]] = {unit: set() for unit in inputs}
    for unit, read in inputs.items():
        for each in read:
            users[each].add(unit)
    return set(inputs) - _before_cycles(inputs) - _before_cycles(users)


def _before_cycles(inputs: Mapping[Hashable, set[Hashable]]) -> set[Hashable]:
    """The units that wait for no cycle."""
    sorter, found = TopologicalSorter(inputs), set[Hashable]()
    with contextlib.suppress(CycleError):
        sorter.prepare()
    while ready := sorter.get_ready():
        found.update(ready)
        sorter.done(*ready)
    return found


def _moments(inputs: Mapping[Hashable, set[Hashable]], delegated: set[Hashable]) -> Iterator[set[Hashable]]:
    """Yields the delegated units that can be computed together, after all others that can be before.

    Raises:
        CycleError: Units wait for each other.
    """
    sorter = TopologicalSorter(inputs)
    sorter.prepare()
    ready = {*sorter.get_ready()}
    while ready:
        for turn in (ready.difference, ready.intersection):
            moment = set[Hashable]()
            while now := turn(delegated):
                ready -= now
                moment |= now
                sorter.done(*now)
                ready.update(sorter.get_ready())
        if moment:
            yield moment
