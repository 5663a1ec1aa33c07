"""Describes the graph of a lowered method for people: its operators, its blocks in backends, and its weights."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from executorch.exir.backend import utils
from executorch.exir.backend.canonical_partitioners.config_partitioner import (
    ConfigerationBasedPartitioner,
    format_target_name,
)
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree

from etbuild.exception_text import shortened
from etbuild.inputs.source_lines import first_name
from etbuild.lower import named_data
from etbuild.lower.partition_counts import operator_name
from etbuild.model.tensor_bytes import dtype_name
from etbuild.patching import replaced
from etbuild.results import GRAPH_NOTES, GraphNode, GraphWeight, MethodGraph

_WHY_NOT = "etbuild_why_not"  # the key in a node's `meta` for messages of partitioners about it
_SETTINGS = ("axis", "block_size", "group_size", "input_dtype", "dtype", "quant_min", "quant_max")


@contextmanager
def reasons_kept() -> Iterator[None]:
    """Within this context, a node that partitioners do not take keeps their reasons.

    Partitioners give reasons to two classes of ExecuTorch, which only log them. A partitioner with a rule for each
    operator that it takes, such as XNNPACK's, gives no reason for other operators: the node then notes that there is no
    rule.
    """
    say, report = utils.WhyNoPartition.__call__, utils.WhyNoPartitionReporter.report_reject
    match = ConfigerationBasedPartitioner.get_matched_nodes_from_configs

    def say_and_keep(self: Any, node: Node, reason: str) -> None:
        _keep(node, reason)
        say(self, node, reason)

    def report_and_keep(self: Any, node: Node, reason: str) -> None:
        _keep(node, reason)
        report(self, node, reason)

    def match_and_keep(self: Any, program: ExportedProgram) -> Any:
        rules, no_rule = self.target_partitioner_configs, f"{self.delegation_spec.backend_id} has no rule for it"
        for node in program.graph.nodes:
            if node.op == "call_function" and format_target_name(node.target.__name__) not in rules:
                _keep(node, no_rule)
        return match(self, program)

    with (
        replaced(utils.WhyNoPartition, "__call__", say_and_keep),
        replaced(utils.WhyNoPartitionReporter, "report_reject", report_and_keep),
        replaced(ConfigerationBasedPartitioner, "get_matched_nodes_from_configs", match_and_keep),
    ):
        yield


def _keep(node: Any, reason: Any) -> None:
    if isinstance(node, Node):
        node.meta[_WHY_NOT] = list(dict.fromkeys([*node.meta.get(_WHY_NOT, ()), shortened(str(reason))]))


def describe(program: ExportedProgram) -> MethodGraph:
    """The graph of a lowered method. A graph inside it, such as a branch of `torch.cond`, counts as one operator.

    Args:
        program: The lowered method, before memory is planned.
    """
    described = _Described()
    described.walk(program, {}, None)
    for node in program.graph.find_nodes(op="placeholder"):
        described.graph.update(node.meta.get("custom", {}).get(GRAPH_NOTES, {}))
    return described.graph


def names_by_handle(program: ExportedProgram) -> dict[int, list[str]]:
    """The names of nodes in the exported graph, by the debug handles that ExecuTorch gives to their results.

    Args:
        program: The lowered method, before it is emitted: emission replaces handles by the numbers of instructions.
    """
    graphs = [each for each in program.graph_module.modules() if isinstance(each, torch.fx.GraphModule)]
    inside = [each.original_module.graph_module for each in named_data.delegates(program.graph_module)]
    found: dict[int, dict[str, None]] = {}
    for module in [*graphs, *inside]:
        for node in module.graph.nodes:
            if node.op == "call_function":
                for handle in handles(node.meta.get("debug_handle")):
                    found.setdefault(handle, {})[first_name(node)] = None
    return {handle: list(names) for handle, names in found.items()}


def handles(of_node: Any) -> list[int]:
    """Debug handles as a list: a fused node has several, and some nodes have none."""
    return [each for each in pytree.tree_leaves(of_node) if isinstance(each, int)]


class _Described:
    """The part of the graph that was visited so far."""

    def __init__(self) -> None:
        self.graph: MethodGraph = {"nodes": [], "blocks": [], "weights": []}
        self._weights: dict[str, int] = {}

    def walk(self, program: ExportedProgram, given: dict[str, list[int]], block: int | None) -> list[list[int]]:
        """Adds the nodes of a method (`block` is None), or of a delegate with this number, and returns the nodes that
        make each output. `given` has the nodes that make a delegate's inputs, by the name of the input."""
        made: dict[Node, list[int]] = {}
        parts: dict[Node, list[list[int]]] = {}  # the outputs of a delegate's call
        parameters = program.graph_signature.inputs_to_parameters
        read = {node: self._weight(node, name, node.name in parameters) for node, name in named_data.weights(program)}
        users = set(program.graph_signature.user_inputs)
        for node in program.graph.nodes:
            if node.op == "placeholder":
                made[node] = given.get(node.name, [])
                if block is None and node.name in users:
                    made[node] = [self._add(node, "input", [], {}, None)]
            elif node.op == "output":
                outputs = [made.get(each, []) for each in _nodes(node.args[0])]
                if block is None:
                    self._add(node, "output", sorted({each for of_one in outputs for each in of_one}), {}, None)
                return outputs
            elif node.op != "call_function":
                continue
            elif node.target is executorch_call_delegate:
                parts[node] = self._delegate(program, node, made)
                made[node] = [each for of_one in parts[node] for each in of_one]
            elif node.target is operator.getitem:
                source, number = node.args
                of_parts = dict(enumerate(parts.get(source, ())))
                made[node] = of_parts.get(number, made.get(source, []))
            else:
                inputs = dict.fromkeys(
                    each for source in _nodes((node.args, node.kwargs)) for each in made.get(source, ())
                )
                made[node] = [self._add(node, operator_name(node), list(inputs), read, block)]
        return []

    def _delegate(self, program: ExportedProgram, node: Node, made: dict[Node, list[int]]) -> list[list[int]]:
        holder, *arguments = node.args
        lowered = getattr(program.graph_module, holder.target)
        assert isinstance(lowered, LoweredBackendModule)
        output = lowered.named_data_store_output
        blobs = sum(map(len, output.buffers)) if output is not None else 0
        self.graph["blocks"].append({"backend": lowered.backend_id, "bytes": len(lowered.processed_bytes) + blobs})
        inside = lowered.original_module
        sources = [made.get(each, []) if isinstance(each, Node) else [] for each in arguments]
        names = inside.graph_signature.user_inputs
        return self.walk(inside, dict(zip(names, sources, strict=False)), len(self.graph["blocks"]) - 1)

    def _add(self, node: Node, called: str, inputs: list[int], read: dict[Node, int | None], block: int | None) -> int:
        weights = sorted(
            {number for each in _nodes((node.args, node.kwargs)) if (number := read.get(each)) is not None}
        )
        described: GraphNode = {"operator": called, "inputs": inputs, "name": first_name(node)}
        if layer := _layer(node):
            described["layer"] = layer
        if block is not None:
            described["block"] = block
        elif why_not := node.meta.get(_WHY_NOT):
            described["why_not"] = why_not
        if weights:
            described["weights"] = weights
        if "dequantize" in called:
            described["quantization"] = _settings(node)
            described["layer"] = next(filter(None, map(_layer, node.users)), described.get("layer", ""))
        self.graph["nodes"].append(described)
        return len(self.graph["nodes"]) - 1

    def _weight(self, node: Node, name: str, parameter: bool) -> int | None:
        if name not in self._weights:
            value = node.meta.get("val")
            if not isinstance(value, torch.Tensor):
                return None
            self._weights[name] = len(self.graph["weights"])
            dtype, shape = dtype_name(value.dtype), [int(size) for size in value.shape]
            described: GraphWeight = {"name": name, "dtype": dtype, "shape": shape, "bytes": value.nbytes}
            if parameter:
                described["parameter"] = True
            self.graph["weights"].append(described)
        return self._weights[name]


def _nodes(arguments: Any) -> list[Node]:
    return [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, Node)]


def _layer(node: Node) -> str:
    """The name of the module that calls a node; empty for the root, and if it is not known."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    name = str(stack[-1][0]) if stack else ""
    return "" if name.startswith("_empty_nn_module_stack") else name  # PyTorch's name for a missing stack


def _settings(node: Node) -> dict[str, object]:
    """The settings of an operator that dequantizes, by the names of its parameters."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {}
    named = {parameter.name: value for parameter, value in zip(schema.arguments, node.args, strict=False)}
    found = {name: value for name, value in {**named, **node.kwargs}.items() if name in _SETTINGS}
    return {
        name: dtype_name(value) if isinstance(value, torch.dtype) else value
        for name, value in sorted(found.items())
        if isinstance(value, (int, torch.dtype))
        or (isinstance(value, (list, tuple)) and all(type(each) is int for each in value))
    }
