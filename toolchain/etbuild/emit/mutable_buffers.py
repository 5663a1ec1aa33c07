"""Handles buffers that methods write to at run time, such as a KV cache.

With `share_mutable_buffers`, all methods share such a buffer: it has the same offset in the memory plan of each.
ExecuTorch decides that offset when it has planned all methods. Methods that are emitted one by one first get their own
offsets, and `lay_out` then gives them the common ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from executorch.exir import EdgeProgramManager
from executorch.exir.schema import AllocationDetails, ExecutionPlan, Tensor
from torch.export import ExportedProgram

from etbuild import backends
from etbuild.errors import BuildError, Problem
from etbuild.lower import named_data
from etbuild.lower.weight_storage import Digests
from etbuild.model.tensor_bytes import form
from etbuild.model.tensor_facts import original_name

ARENA = 2  # ExecuTorch's memory for buffers that methods share


@dataclass(frozen=True)
class BufferUser:
    """A method without its delegates, or one of its delegates, as a user of buffers.

    Attributes:
        backend: ExecuTorch's name of the delegate's backend; empty for the method.
        used: The buffers that it reads or writes to.
        written: The buffers that it writes to itself.
    """

    backend: str
    used: list[str]
    written: list[str]


@dataclass(frozen=True)
class Planned:
    """A buffer with a place in a method's own memory plan.

    Attributes:
        name: The name of the buffer.
        offset: Where it begins in the memory for shared buffers, in bytes.
        size: Its size in bytes.
        written: Whether the method writes to it.
    """

    name: str
    offset: int
    size: int
    written: bool


@dataclass(frozen=True)
class Buffers:
    """The buffers of a method that a method of the program writes to.

    Attributes:
        parts: The method, and its delegates in the order of the graph.
        contents: The form and the digest of each buffer, by the name that it has in all methods.
        planned: Those with a place in memory, in the order of the graph.
        unplanned: The names of the buffers that the method writes to and that have no such place.
    """

    parts: list[BufferUser]
    contents: dict[str, tuple[str, str]]
    planned: list[Planned]
    unplanned: list[str]


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


def writers(methods: Mapping[str, Buffers]) -> dict[str, str]:
    """The buffers that methods or their delegates write to, each with the first method that does so."""
    found: dict[str, str] = {}
    for method, buffers in sorted(methods.items()):
        for name in [name for part in buffers.parts for name in part.written]:
            found.setdefault(name, method)
    return found


def check(methods: dict[str, Buffers], named: Collection[str]) -> None:
    """Checks that methods can share the buffers that they write to.

    ExecuTorch shares buffers by name when it plans memory. If one method writes to a buffer, the buffer must not be a
    constant in any other method, and must not be inside a delegate.

    Args:
        methods: The buffers of each method, by name.
        named: The backends that the plan names.

    Raises:
        BuildError: A delegate keeps a shared buffer as its own state or treats it as a constant, or two methods have
            different buffers of the same name.
    """
    written = writers(methods)
    problems = [*_unequal(methods, written), *_taken(methods, written, named)]
    if problems:
        raise BuildError(problems)


def _taken(methods: dict[str, Buffers], written: dict[str, str], named: Collection[str]) -> Iterator[Problem]:
    """Reports written buffers inside delegates: methods cannot share them."""
    users: dict[str, set[str]] = {}
    for method, buffers in methods.items():
        for name in [name for part in buffers.parts for name in part.used]:
            users.setdefault(name, set()).add(method)
    for method, buffers in sorted(methods.items()):
        path = ("methods", method, "partitioners")
        for part in [part for part in buffers.parts if part.backend]:
            for name in [name for name in part.used if name in written]:
                others = " and ".join(f"`{each}`" for each in sorted(users[name] - {method}))
                without = "remove the backend from this method, or remove `share_mutable_buffers`"
                if name not in part.written:
                    message = f"{part.backend} treats `{name}` as a constant, but `{written[name]}` writes to it"
                    yield Problem(message, path, without)
                elif others:
                    message = f"{part.backend} keeps `{name}` inside its delegate, so {others} cannot share it"
                    backend = backends.of_delegate(part.backend, named)
                    yield Problem(message, path, (backend and backend.mutable_buffers_hint) or without)


def _unequal(methods: dict[str, Buffers], shared: Collection[str]) -> list[Problem]:
    """Reports buffers of `shared` that have the same name in two methods but differ, so that they cannot be shared."""
    first: dict[str, tuple[str, str, str]] = {}
    problems = []
    for method, buffers in sorted(methods.items()):
        for name, (ours, digest) in sorted(buffers.contents.items()):
            if name not in shared:
                continue
            other, theirs, known = first.setdefault(name, (method, ours, digest))
            if (ours, digest) != (theirs, known):
                if ours == theirs:
                    message = f"`{name}` has other initial values than in `{other}`"
                else:
                    message = f"`{name}` is {ours}, and {theirs} in `{other}`"
                hint = "methods share buffers by name: rename one, or remove `share_mutable_buffers`"
                problems.append(Problem(message, ("methods", method), hint))
    return problems


def lay_out(plans: dict[str, ExecutionPlan], methods: dict[str, Buffers]) -> None:
    """Gives each shared buffer the same offset in the memory plans of all methods.

    Buffers get their offsets in the order in which the methods write to them, as in ExecuTorch's own plan.

    Args:
        plans: The execution plan of each method, by name. They are changed in place.
        methods: The buffers of each method, by name.

    Raises:
        BuildError: A buffer has no place in a method, or different sizes in two methods.
    """
    offsets: dict[str, int] = {}
    sizes: dict[str, int] = {}
    end = 0
    for _, buffers in sorted(methods.items()):
        for buffer in buffers.planned:
            if buffer.written and buffer.name not in offsets:
                offsets[buffer.name], sizes[buffer.name] = end, buffer.size
                end += buffer.size
    for method, buffers in sorted(methods.items()):
        wrong = [buffer.name for buffer in buffers.planned if sizes.get(buffer.name) != buffer.size]
        wrong += [name for name in buffers.unplanned if name in offsets]
        if wrong:
            raise BuildError.at(
                ("share_mutable_buffers",),
                f"`{wrong[0]}` is not one buffer of all methods: it has no place in the memory plan of `{method}`",
                "use the same memory planning for all methods, or remove `share_mutable_buffers`",
            )
        _move(plans[method], buffers.planned, offsets)
        plans[method].non_const_buffer_sizes[ARENA] = end


def _move(plan: ExecutionPlan, own: list[Planned], offsets: dict[str, int]) -> None:
    """Moves the values of a plan that are in shared buffers, or are views of them."""
    for value in plan.values:
        tensor = value.val
        if isinstance(tensor, Tensor) and tensor.allocation_info and tensor.allocation_info.memory_id == ARENA:
            offset = tensor.allocation_info.memory_offset
            buffer = _holder(tensor, own)
            assert buffer is not None
            start = offsets[buffer.name] + offset - buffer.offset
            tensor.allocation_info = AllocationDetails(
                memory_id=ARENA, memory_offset_low=start & 0xFFFFFFFF, memory_offset_high=start >> 32
            )


def _holder(tensor: Tensor, planned: list[Planned]) -> Planned | None:
    """The buffer at the place of a tensor in the memory for shared buffers. The tensor may be a view of the buffer."""
    assert tensor.allocation_info is not None
    offset, empty = tensor.allocation_info.memory_offset, 0 in tensor.sizes
    holders = [each for each in planned if each.offset <= offset < each.offset + max(each.size, 1)]
    # An empty buffer has the same offset as the next one.
    return next((each for each in holders if (each.size == 0) == empty), next(iter(holders), None))
