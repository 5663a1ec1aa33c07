"""Finds the buffers that an exported method writes to."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from etbuild.model.method_tensors import original_name


def written_buffers(program: ExportedProgram, methods: Collection[str]) -> set[str]:
    """Finds the buffers that a method writes to, also through views of them.

    Before decompositions, the signature of an exported program does not say what its operators write to.

    Args:
        program: The exported method.
        methods: The names of all methods.

    Returns:
        The names of the buffers, and the names that they have in all methods.
    """
    buffers = program.graph_signature.inputs_to_buffers
    names = set(program.graph_signature.buffers_to_mutate.values())
    for node in program.graph.nodes:
        for operand in _operands(node, writing=True):
            origin: Node | None = operand
            while origin is not None and origin.op != "placeholder":
                origin = next(_operands(origin, writing=False), None)
            if origin is not None and origin.name in buffers:
                names.add(buffers[origin.name])
    return names | {original_name(name, methods) for name in names}


def _operands(node: Node, *, writing: bool) -> Iterator[Node]:
    """The operands whose memory a node writes to; or those whose memory its result shares."""
    if node.target is operator.getitem and not writing:
        yield from _nodes(node.args[0])
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return
    for index, argument in enumerate(node.target._schema.arguments):
        alias = argument.alias_info
        if alias is not None and (alias.is_write or not writing):
            yield from _nodes(node.args[index] if index < len(node.args) else node.kwargs.get(argument.name))


def _nodes(value: Any) -> Iterator[Node]:
    if isinstance(value, Node):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _nodes(each)
