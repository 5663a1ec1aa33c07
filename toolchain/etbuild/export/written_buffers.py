"""Finds the buffers that an exported method writes to."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from etbuild.model.method_tensors import original_name


def written_buffers(program: ExportedProgram, methods: Collection[str]) -> set[str]:
    """Finds the buffers that a method writes to, also through views of them and in other graphs that it calls.

    Before decompositions, the signature of an exported program does not say what its operators write to. The example
    values of its nodes do: a view has the memory of its buffer. A program that was read from a file has lost that, so
    that writes through views may be missing.

    Args:
        program: The exported method.
        methods: The names of all methods.

    Returns:
        The names of the buffers, and the names that they have in all methods.
    """
    buffers = program.graph_signature.inputs_to_buffers
    names = set(program.graph_signature.buffers_to_mutate.values())
    inputs = [node for node in program.graph.nodes if node.op == "placeholder" and node.name in buffers]
    memory = {memory_of(node): buffers[node.name] for node in inputs}
    names |= {memory[place] for place in map(memory_of, written_nodes(program)) if place in memory}
    return names | {original_name(name, methods) for name in names}


def written_nodes(program: ExportedProgram) -> Iterator[Node]:
    """The nodes whose tensors the operators of a method write to, also in other graphs that it calls."""
    for child in program.graph_module.modules():
        if isinstance(child, GraphModule):
            for node in child.graph.nodes:
                yield from _written(node)


def memory_of(node: Node) -> int | None:
    """The identity of the memory of a node's example value; None if it has none."""
    value = node.meta.get("val")
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


def _written(node: Node) -> Iterator[Node]:
    """The operands that an operator writes to."""
    if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
        for index, argument in enumerate(node.target._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                yield from _nodes(node.args[index] if index < len(node.args) else node.kwargs.get(argument.name))


def _nodes(value: Any) -> Iterator[Node]:
    if isinstance(value, Node):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _nodes(each)
