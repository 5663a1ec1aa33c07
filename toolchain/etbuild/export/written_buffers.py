"""The tensors that a method writes to: finds written buffers, and copies what a program would read too late.

A written buffer that shares memory with another tensor is refused. A tensor that a program would read after it is
overwritten is copied before. Methods write to copies of their inputs: a program would return each written input as a
further result.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import GraphModule, Node

from etbuild import notes
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


_ATEN = torch.ops.aten


def copy_sources(program: ExportedProgram) -> None:
    """Copies tensors that are written into several buffers, and buffers that are written into others.

    ExecuTorch cannot lower a method in which two buffers end as one tensor, as after `self.previous.copy_(self.state)`.

    Args:
        program: The method. It is changed in place.
    """
    buffers = program.graph_signature.inputs_to_buffers
    buffer_memories = {memory_of(node) for node in program.graph.find_nodes(op="placeholder") if node.name in buffers}
    buffer_memories.discard(None)
    seen = set(buffer_memories)
    for write in list(program.graph.find_nodes(op="call_function", target=_ATEN.copy_.default)):
        buffer, source = write.args[:2]
        memory = memory_of(source)
        if memory_of(buffer) not in buffer_memories or memory in (None, memory_of(buffer)):
            continue
        if memory in seen:
            with program.graph.inserting_before(write):
                write.update_arg(1, _copy(program.graph, source))
        seen.add(memory)
    program.graph_module.recompile()


def copy_inputs(program: ExportedProgram, method: str) -> None:
    """Lets a method write to copies of its inputs, and prints a note about each input that it writes to.

    Args:
        program: The method. It is changed in place.
        method: The name of the method.
    """
    specs = program.graph_signature.input_specs
    input_names = {spec.arg.name for spec in specs if spec.kind is InputKind.USER_INPUT}
    inputs = [node for node in program.graph.find_nodes(op="placeholder") if node.name in input_names]
    written = {memory_of(node) for node in written_nodes(program)} - {None}
    first = next(node for node in program.graph.nodes if node.op != "placeholder")
    changed = [node for node in inputs if memory_of(node) in written]
    for node in changed:
        with program.graph.inserting_before(first):
            copy = _copy(program.graph, node)
        node.replace_all_uses_with(copy, lambda user, copy=copy: user is not copy)
        _rename_results(program, node.name, copy.name)
        _note(method, node.name)
    if changed:
        program.graph_module.recompile()


def drop_inputs(program: ExportedProgram, method: str) -> ExportedProgram:
    """Does the same as `copy_inputs` for a program from a file, which no longer tells which tensors share memory.

    Args:
        program: The method.
        method: The name of the method.

    Returns:
        The program itself if it writes to no input. Otherwise a functional copy: its operators write to nothing, and it
        does not return the new content of inputs.
    """
    functional = program.run_decompositions({}) if any(written_nodes(program)) else program
    specs = functional.graph_signature.output_specs
    is_result = [spec.kind is not OutputKind.USER_INPUT_MUTATION for spec in specs]
    if all(is_result):
        return program
    for spec in itertools.compress(specs, [not kept_result for kept_result in is_result]):
        _note(method, str(spec.target))
    output = functional.graph.output_node()
    output.args = (tuple(itertools.compress(output.args[0], is_result)),)
    output.meta["val"] = tuple(itertools.compress(output.meta["val"], is_result))
    specs[:] = itertools.compress(list(specs), is_result)
    functional.graph_module.recompile()
    return functional


def _note(method: str, name: str) -> None:
    message = "in a program the caller's tensor keeps its values; to get the new ones, return it"
    notes.add(f"`{method}` writes to its input `{name}`: {message}")


def _copy(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node:
    copy = graph.call_function(_ATEN.clone.default, (node,))
    copy.meta = {key: value for key, value in node.meta.items() if key in ("stack_trace", "nn_module_stack")}
    copy.meta["val"] = node.meta["val"].clone()
    return copy


def _rename_results(program: ExportedProgram, old: str, new: str) -> None:
    for spec in program.graph_signature.output_specs:
        argument: Any = spec.arg
        if getattr(argument, "name", None) == old:
            argument.name = new
