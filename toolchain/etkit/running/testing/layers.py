"""Measures how much each layer of a quantized method loses by itself.

In the quantized graph, each layer gets its inputs from the graph without quantization. So an error of one layer does
not count for layers after it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from etbuild.inputs.source_lines import Line, SourceLines, first_name
from etbuild.inputs.user_code import active_finder
from etkit.running.testing.reference import MethodCall, Reference
from etplugins.comparison import accuracy

_SHOWN = 5


@dataclass(frozen=True)
class Layer:
    """A layer of a quantized method.

    Attributes:
        name: The module that contains it, such as `layers.7.linear`; without a module, the name of the node.
        operator: The operator, such as `aten.linear.default`.
        sqnr: The ratio of signal to error of its result, in decibels.
        line: The line of the model that calls it; None if it is unknown.
    """

    name: str
    operator: str
    sqnr: float
    line: Line | None

    def __str__(self) -> str:
        where = f", at {self.line}" if self.line is not None else ""
        return f"{self.sqnr:6.1f} dB  {self.name} ({self.operator}){where}"


def measure(reference: Reference, call: MethodCall) -> list[Layer]:
    """The layers of a method that quantization changes, the worst first.

    Args:
        reference: The model. Its state changes: run this in a child process.
        call: A call of a quantized method.
    """
    plain = reference.exported(call.method, quantized=False)
    quantized = reference.exported(call.method)
    exact = _Values(plain.module(check_guards=False))
    with torch.no_grad():
        exact.run(*call.leaves, enable_io_processing=False)
        forced = _Forced(quantized.module(check_guards=False), _expected(exact))
        forced.run(*reference.taken(call.method, call.leaves), enable_io_processing=False)
    lines = SourceLines.of_programs({call.method: plain}, active_finder().name_of)
    nodes = {node.name: node for node in plain.graph.nodes}
    found = [_layer(nodes[name], ratio, call.method, lines) for name, ratio in forced.ratios.items()]
    return sorted((each for each in found if not math.isinf(each.sqnr) or each.sqnr < 0), key=lambda each: each.sqnr)


def text(reference: Reference, call: MethodCall) -> str:
    """The worst layers for people, one a line. Arguments are those of `measure`."""
    layers = measure(reference, call)
    if not layers:
        return "no layer of the quantized graph has a counterpart in the graph without quantization"
    lines = ["the layers by their own ratio of signal to error, the worst first:"]
    lines += [f"  {layer}" for layer in layers[:_SHOWN]]
    return "\n".join(lines + ([f"  and {len(layers) - _SHOWN} more"] if len(layers) > _SHOWN else []))


def _layer(node: Node, ratio: float, method: str, lines: SourceLines) -> Layer:
    stack = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values() if path]
    name = stack[-1].removeprefix("L['self'].") if stack else node.name
    return Layer(name, str(node.target), ratio, next(iter(lines.of_node(method, first_name(node))), None))


class _Values(Interpreter):  # type: ignore[misc] # torch.fx has no types
    """Runs a graph on a flat list of inputs, and keeps the result of each node by name."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.values: dict[str, torch.Tensor] = {}

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        if n.op == "call_function" and isinstance(value, torch.Tensor):
            self.values[n.name] = value.detach().clone()
        return value


def _expected(exact: _Values) -> dict[str, tuple[Node, torch.Tensor]]:
    """The right results of the nodes of the quantized graph, by name. Quantization folds a batch norm into the
    convolution before it, so the right result of the convolution is that of the batch norm."""
    found = {}
    for node in exact.module.graph.nodes:
        if node.name not in exact.values:
            continue
        users = list(node.users)
        folded = len(users) == 1 and "conv" in str(node.target) and "batch_norm" in str(users[0].target)
        result = exact.values.get(users[0].name) if folded else exact.values[node.name]
        if result is not None:
            found[node.name] = (node, result)
    return found


class _Forced(Interpreter):  # type: ignore[misc] # torch.fx has no types
    """Runs a quantized graph, and gives each node the exact results of the nodes before it."""

    def __init__(self, module: GraphModule, expected: dict[str, tuple[Node, torch.Tensor]]) -> None:
        super().__init__(module)
        self._expected = expected
        self.ratios: dict[str, float] = {}

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        known = self._expected.get(n.name)
        if known is None or not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        node, exact = known
        if str(node.target) != str(n.target) or value.shape != exact.shape:
            return value
        self.ratios[n.name] = accuracy.sqnr(value, exact)
        return exact.clone().to(value.dtype)
