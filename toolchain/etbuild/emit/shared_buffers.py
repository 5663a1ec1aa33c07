"""Buffers that methods share and write to at run time, such as a KV cache, in emitted methods.

ExecuTorch decides the offset of a shared buffer when it has planned all methods. Methods that are emitted one by one
first get their own offsets, and `lay_out` then gives them the common ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from executorch.exir.schema import AllocationDetails, ExecutionPlan, Tensor

from etbuild import backends
from etbuild.errors import BuildError, Problem

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
    BuildError.raise_if(problems)


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
