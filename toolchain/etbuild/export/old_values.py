"""Copies tensors in an exported method that a program would read after they are overwritten.

Also keeps methods from writing to their inputs: a program would return each such input as a further result.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from etbuild import notes
from etbuild.export.written_buffers import memory_of, written_nodes

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
