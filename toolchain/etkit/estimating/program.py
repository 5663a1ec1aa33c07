"""What a program takes: the sizes of its files, the memory that its methods plan, and what their delegates keep."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from etbuild.emit.shared_buffers import ARENA
from etbuild.lower.blobs import Blob, blob_bytes
from etkit.inspection.details import LargeTensor, large_tensors

if TYPE_CHECKING:
    from executorch.exir._serialize._program import PTEFile
    from executorch.exir.schema import ExecutionPlan

    from etbuild.emit.emitted import Emitted
    from etbuild.results import LoweringFacts, MemoryPlan

Kept = tuple[int, int]
"""What the delegates of a method keep, and the memory that they compute in, in bytes."""


@dataclass(frozen=True)
class Method:
    """What a method takes.

    Attributes:
        planned: The bytes of its planned memory, with those that methods share.
        state: The bytes among them that hold buffers from call to call, such as a cache.
        kept: The bytes that its delegates keep: weights in a form of their own, and tables.
        scratch: The bytes of memory that its delegates compute in, one after the other.
        call: The size of the second dimension of its first input, at most: for a decoder, the tokens of a call.
        largest: The tensors that make its planned memory large.
    """

    planned: int
    state: int
    kept: int
    scratch: int = 0
    call: int = 0
    largest: tuple[LargeTensor, ...] = ()


@dataclass(frozen=True)
class Program:
    """What a program takes.

    Attributes:
        files: The bytes of each file, by its name.
        methods: Its methods by name.
        shared: The bytes of planned memory that all methods share.
    """

    files: Mapping[str, int]
    methods: Mapping[str, Method]
    shared: int

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(self.files.values())

    @property
    def planned(self) -> int:
        """The bytes of planned memory of all methods together."""
        return self.shared + sum(each.planned - self.shared for each in self.methods.values())

    @property
    def state(self) -> int:
        """The bytes of buffers from call to call, of all methods together."""
        if self.shared:
            return max((each.state for each in self.methods.values()), default=0)
        return sum(each.state for each in self.methods.values())

    @property
    def kept(self) -> int:
        """The bytes that delegates keep, of all methods together. They compute in the same memory."""
        methods = self.methods.values()
        return sum(each.kept for each in methods) + max((each.scratch for each in methods), default=0)

    @property
    def resident(self) -> int:
        """The bytes that no file holds, when all methods are loaded and have used all of their memory."""
        return self.planned + self.kept


def described(
    plans: Iterable[ExecutionPlan], files: Mapping[str, int], kept: Mapping[str, Kept], shares: bool
) -> Program:
    """Describes a program.

    Args:
        plans: The execution plans of its methods, and of its constant methods.
        files: The bytes of its files, by name.
        kept: What the delegates of each method keep, by method.
        shares: Whether methods share the buffers that they write to.
    """
    from etbuild.files import instructions

    found, shared = dict[str, Method](), 0
    for plan in plans:
        sizes = plan.non_const_buffer_sizes
        if plan.name not in kept:
            continue  # a constant method
        memory = instructions.memory_plan(plan)
        shared = max(shared, sizes[ARENA] if shares and len(sizes) > ARENA else 0)
        largest = tuple(large_tensors(memory, plan))
        found[plan.name] = Method(sum(sizes[1:]), _state(memory), *kept[plan.name], _call(plan), largest)
    return Program(files, found, shared)


def _call(plan: ExecutionPlan) -> int:
    first = plan.values[plan.inputs[0]].val if plan.inputs else None
    sizes = getattr(first, "sizes", [])  # a number or a text has none
    return int(sizes[1]) if len(sizes) > 1 else 0


def _state(memory: MemoryPlan) -> int:
    """The bytes of a memory plan that outlive a call. A view that ExecuTorch has left out looks like a state, but is in
    the memory of what an instruction has written."""
    places = [(each["arena"], each["offset"], each["offset"] + each["bytes"], each["of"]) for each in memory["tensors"]]
    made = [each for each in places if each[3] != "state"]
    states = [
        (arena, first, end)
        for arena, first, end, of in places
        if of == "state" and not any(arena == other[0] and first < other[2] and other[1] < end for other in made)
    ]
    total, known = 0, (0, 0)
    for arena, first, end in sorted(states):  # views of a state are in its memory
        known = max(known, (arena, first))
        total += max(0, end - known[1])
        known = max(known, (arena, end))
    return total


def kept_by_delegates(parts: Iterable[Emitted]) -> dict[str, Kept]:
    """What the delegates of each method keep, by method, with the weights that they get."""
    weights, found = dict[str, dict[str, int]](), dict[str, Kept]()
    for part in parts:
        weights.update({name: {} for name in part.facts})
        for key, request in part.requests:
            weights[request.method][key] = len(request.data.content)
        for plan in part.plans:
            if plan.name in weights:
                found[plan.name] = _kept(plan, part.delegates, sum(weights[plan.name].values()))
    return found


def kept_of_file(file: PTEFile, methods: Collection[str], facts: LoweringFacts) -> dict[str, Kept]:
    """The same, of a program that was written: the named data, in any of its files, whose keys its delegates contain.

    Args:
        file: The program.
        methods: The names of its methods.
        facts: The facts of its lowering.
    """
    sizes = dict(facts["program"]["bytes"]["named_data"])
    for of_tag in facts["named_data"].values():
        sizes.update(of_tag)
    found, blobs = dict[str, Kept](), [Blob(each.data) for each in file.program.backend_delegate_data]
    for plan in file.program.execution_plan:
        if plan.name in methods:
            compiled = [blobs[each.processed.index].content for each in plan.delegates]
            keys = [key for key in sizes if any(key.encode() in each for each in compiled)]
            found[plan.name] = _kept(plan, blobs, sum(sizes[key] for key in keys))
    return found


def _kept(plan: ExecutionPlan, blobs: Sequence[Blob], weights: int) -> Kept:
    from etkit.estimating import xnnpack

    compiled = [blobs[each.processed.index].content for each in plan.delegates if each.id == xnnpack.DELEGATE]
    graphs = [xnnpack.graph(blob_bytes(each)) for each in compiled]
    tables = sum(xnnpack.tables(each) for each in graphs)
    return weights + tables, xnnpack.workspaces(xnnpack.workspace(each) for each in graphs)
