"""Finds values that no scale of 8 bits fits: infinite and very large numbers, and sums in which one operand vanishes.

The mask of an attention is minus infinity, or the smallest number of float32, or -10000. torchao's observers ignore
infinite numbers, and the quantized mask would hide nothing. With a large number, the step of the quantized sum is
larger than all scores, which become equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.utils import _pytree as pytree

from etplugins.edges.facts import MOVES, operator_name
from etplugins.edges.writes import writes

_MOST = 3e15  # torch.histc, which finds ranges, fails for larger numbers
_STEPS = 255  # between the least and the largest number of 8 bits
_BATCHES = 16  # the largest number of batches that are looked at
_SUMS = ("add", "sub", "rsub")
_KEEPING = MOVES | {"cat", "hardtanh", "max_pool2d", "relu"}
"""The names of operators whose result has the range of their inputs."""


@dataclass
class Unfit:
    """The nodes of a graph that are not quantized.

    Attributes:
        values: Nodes whose values no scale fits. Nobody quantizes them.
        sums: Sums in which one operand vanishes, and operators that only pass such a sum on. They stay in floats.
    """

    values: set[Node] = field(default_factory=set)
    sums: set[Node] = field(default_factory=set)


def find(model: GraphModule, batches: Iterable[tuple[Any, ...]]) -> Unfit:
    """Runs a method on some batches, and finds the values that no scale fits. Buffers and inputs keep their content.

    Args:
        model: The graph of the method.
        batches: The positional inputs of each call.
    """
    written = dict(model.named_buffers()) if any(map(writes, model.graph.nodes)) else {}
    before = {name: buffer.clone() for name, buffer in written.items()}
    run = _Run(model)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        with suppress(Exception):  # the calibration fails for the same batch, and names it
            for batch in islice(batches, _BATCHES):
                given = pytree.tree_map_only(torch.Tensor, torch.clone, pytree.tree_leaves(batch))
                run.run(*given, enable_io_processing=False)
        for name, content in before.items():
            written[name].copy_(content)
    found = Unfit()
    for node, (low, high) in run.ranges.items():
        sources = [run.ranges[each] for each in node.all_input_nodes if each in run.ranges]
        if max(-low, high) > _MOST:
            if node.op != "get_attr" or not isinstance(attrgetter(str(node.target))(model), torch.nn.Parameter):
                found.values.add(node)  # a weight with such numbers is an error, which names it
        elif _loses_operand(node, high - low, sources) or _passes_on(node, found):
            found.sums.add(node)
    return found


class _Run(Interpreter):  # type: ignore[misc]
    """Runs a graph, and keeps the least and the largest number of each value in all runs; infinities if one is NaN.

    Attributes:
        ranges: These numbers for each node that computes something, in the order of the graph.
    """

    def __init__(self, model: GraphModule) -> None:
        super().__init__(model)
        self.ranges: dict[Node, tuple[float, float]] = {}

    def run_node(self, node: Node) -> Any:
        """Runs a node, and looks at its value."""
        value = super().run_node(node)
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel():
            low, high = (float(each) for each in torch.aminmax(value.detach().float()))
            before = self.ranges.get(node, (low, high))
            is_number = not math.isnan(low + high)
            self.ranges[node] = (min(low, before[0]), max(high, before[1])) if is_number else (-math.inf, math.inf)
        return value


def _loses_operand(node: Node, span: float, sources: list[tuple[float, float]]) -> bool:
    """Whether a node adds values, and one of them is smaller than a step of the sum, but not zero."""
    if node.op != "call_function" or operator_name(node) not in _SUMS:
        return False
    sizes = [max(-low, high) for low, high in sources]
    return len(sizes) > 1 and 0 < min(sizes) < span / _STEPS


def _passes_on(node: Node, found: Unfit) -> bool:
    return operator_name(node) in _KEEPING and not found.sums.isdisjoint(node.all_input_nodes)
