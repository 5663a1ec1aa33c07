"""Handles buffers that methods write to at run time, such as a KV cache, in lowered methods.

With `share_mutable_buffers`, all methods share such a buffer: it has the same offset in the memory plan of each.
`shared_buffers` gives it that place.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from executorch.exir import EdgeProgramManager
from torch.export import ExportedProgram

from etbuild.emit.shared_buffers import ARENA, Buffers, BufferUser, Planned
from etbuild.lower import named_data
from etbuild.lower.weight_storage import Digests
from etbuild.model.tensor_bytes import form
from etbuild.model.tensor_facts import original_name


def written_by(edge: EdgeProgramManager) -> frozenset[str]:
    """The buffers that lowered methods or their delegates write to, by the names that they have in all methods."""
    programs = [edge.exported_program(method) for method in edge.methods]
    programs += [each.original_module for program in programs for each in named_data.delegates(program.graph_module)]
    names = {name for program in programs for name in program.graph_signature.buffers_to_mutate.values()}
    return frozenset(original_name(name, edge.methods) for name in names)


def untag(edge: EdgeProgramManager, written: Collection[str]) -> None:
    """Removes the tags of buffers that methods write to: such a buffer is no constant in any method."""
    for method in edge.methods:
        for node, name in named_data.weights(edge.exported_program(method)):
            if original_name(name, edge.methods) in written:
                named_data.untag(node)


def keep_initial_values(edge: EdgeProgramManager, shared: Collection[str]) -> None:
    """Makes ExecuTorch keep the initial content of buffers that methods write to, unless it is all zeros.

    By default, ExecuTorch keeps only the shape of such a buffer.

    Args:
        edge: The lowered methods. The metadata of placeholders is changed in place.
        shared: Names of the buffers that methods share because one of them writes to it.
    """
    for method in edge.methods:
        program = edge.exported_program(method)
        written = {*program.graph_signature.buffers_to_mutate.values(), *shared}
        for node, name in named_data.weights(program):
            if name in written and bool(named_data.tensor(program, name).count_nonzero()):
                node.meta["et_init_buffer"] = True  # the mark of ExecuTorch's InitializedMutableBufferPass


def describe(edge: EdgeProgramManager, method: str, written: Collection[str], digests: Digests) -> Buffers:
    """Describes the buffers of a lowered method, before its memory is planned.

    Args:
        edge: The lowered methods.
        method: The name of the method.
        written: The buffers that methods of the program write to.
        digests: The digests of tensors.
    """
    program = edge.exported_program(method)
    delegates = [(each.backend_id, each.original_module) for each in named_data.delegates(program.graph_module)]
    parts = [_part(backend, part, edge.methods) for backend, part in [("", program), *delegates]]
    contents = {}
    for _, own in named_data.weights(program):
        name = original_name(own, edge.methods)
        if name in written:
            tensor = named_data.tensor(program, own)
            contents[name] = form(tensor), digests.content(tensor)
    return Buffers(parts, contents, [], [])


def _part(backend: str, program: ExportedProgram, methods: Collection[str]) -> BufferUser:
    """Describes a method without its delegates, or a delegate.

    A program lists the buffers of the whole module. A buffer that it overwrites is used, though no node reads it.
    """
    own = {original_name(name, methods) for name in program.graph_signature.buffers_to_mutate.values()}
    read = {original_name(name, methods) for node, name in named_data.weights(program) if node.users}
    return BufferUser(backend, sorted(read | own), sorted(own))


def planned(buffers: Buffers, program: ExportedProgram) -> Buffers:
    """Adds the buffers that have a place in the memory for shared buffers.

    Args:
        buffers: The buffers of a method.
        program: The method with planned memory.
    """
    written = set(program.graph_signature.buffers_to_mutate.values())
    specs = [(name, node.meta["spec"]) for node, name in named_data.weights(program)]
    planned = [
        Planned(name, spec.mem_offset, spec.allocated_memory, name in written)
        for name, spec in specs
        if spec.mem_id == ARENA
    ]
    unplanned = [name for name, spec in specs if name in written and spec.mem_id != ARENA]
    return replace(buffers, planned=planned, unplanned=unplanned)
