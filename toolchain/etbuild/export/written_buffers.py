"""Finds the buffers that a method writes to, and refuses a written buffer that shares memory with another tensor."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from etbuild.errors import BuildError
from etbuild.model.tensor_facts import original_name

_ONLY_FORM = ("sym_size", "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full")


def written_buffers(program: ExportedProgram, methods: Collection[str]) -> set[str]:
    """Finds the buffers that a method writes to, also through views and in other graphs that the method calls.

    Before decompositions, the signature of an exported program does not list writes of operators. Example values of
    nodes show them: a view has the memory of its buffer. In a program from a file, values no longer share memory, so
    writes through views may be missing.

    Args:
        program: The exported method.
        methods: The names of all methods.

    Returns:
        The names of the buffers, and the names that they have in all methods.
    """
    buffers = program.graph_signature.inputs_to_buffers
    names = set(program.graph_signature.buffers_to_mutate.values())
    inputs = [node for node in program.graph.find_nodes(op="placeholder") if node.name in buffers and node.users]
    written = {memory_of(node) for node in written_nodes(program)} - {None}
    names |= {buffers[node.name] for node in inputs if memory_of(node) in written}  # all buffers in that memory
    return names | {original_name(name, methods) for name in names}


def check_overlaps(programs: Mapping[str, ExportedProgram], overlaps: Mapping[str, Collection[str]]) -> None:
    """Checks that no method writes to a buffer that shares memory with another tensor: a program separates them.

    Args:
        programs: The methods by name.
        overlaps: For each parameter or buffer that shares a part of its memory, the names of the others.

    Raises:
        BuildError: A method writes to a buffer that shares memory with another tensor that methods use.
    """
    if not overlaps:
        return
    used = set().union(*map(read_tensors, programs.values()))
    for method, program in programs.items():
        for name in sorted(written_buffers(program, programs.keys()) & overlaps.keys()):
            for other in sorted(used.intersection(overlaps[name])):
                message = f"`{method}` writes to the buffer `{name}`, which shares memory with `{other}`"
                hint = "in a program each has its own memory: register one of them, and take the view in the method"
                raise BuildError.at(("methods", method), message, hint)


def read_tensors(program: ExportedProgram) -> set[str]:
    """The names of the parameters, buffers and constants whose content an exported method reads."""
    inputs = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    specs = program.graph_signature.input_specs
    return {spec.target for spec in specs if spec.target is not None and readers(inputs[spec.arg.name])}


def readers(node: Node) -> list[Node]:
    """The nodes that read the content of a tensor, and not only its form."""
    return [user for user in node.users if getattr(user.target, "_opname", None) not in _ONLY_FORM]


def written_nodes(program: ExportedProgram) -> Iterator[Node]:
    """The nodes whose tensors the operators of a method write to, also in other graphs that the method calls."""
    for child in program.graph_module.modules():
        if isinstance(child, GraphModule):
            for node in child.graph.nodes:
                yield from _written(node)


def memory_of(node: Node) -> int | None:
    """The number of the memory of a node's example value; None if the value is not a tensor."""
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
        for element in value:
            yield from _nodes(element)
