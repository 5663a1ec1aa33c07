"""No delegate waits for one that waits for it."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import pytest
from torch.fx.passes.infra.partitioner import Partition

from etplugins.upstream.xnnpack_cycles import no_cycles
from tests.helpers.partitions import Groups, partitions, waiting_groups


def order(groups: Groups, found: list[Partition]) -> list[object]:
    """The delegates and other nodes in an order in which they can be computed. Raises CycleError if there is none."""
    of = {node: partition.id for partition in found for node in partition.nodes}
    inputs: dict[object, set[object]] = {}
    for node in groups[0].graph.nodes:
        own = of.get(node, node)
        inputs.setdefault(own, set()).update({of.get(each, each) for each in node.all_input_nodes} - {own})
    return list(TopologicalSorter(inputs).static_order())


def test_delegates_that_wait_for_each_other_are_cut() -> None:
    groups = waiting_groups()
    with pytest.raises(CycleError):
        order(groups, partitions(groups))
    with no_cycles():
        found = partitions(groups)
    assert order(groups, found)
    assert [sorted(node.name for node in each.nodes) for each in found] == [["far", "first", "near", "other"], ["last"]]


def test_groups_that_wait_for_each_other_stay() -> None:
    """Nothing can compute them: ExecuTorch's error says so."""
    module, [[other], [first], [far, near], [last]] = waiting_groups()
    groups = module, [[other], [first, last], [far, near]]
    before = {frozenset(each.nodes) for each in partitions(groups)}
    with no_cycles():
        assert {frozenset(each.nodes) for each in partitions(groups)} == before
