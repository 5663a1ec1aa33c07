"""Reads the instructions of a program: their graph, and the planned memory over the time of a call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from executorch.exir.schema import (
    DelegateCall,
    ExecutionPlan,
    KernelCall,
    MoveCall,
    OptionalTensorList,
    Tensor,
    TensorList,
)
from executorch.exir.tensor import get_scalar_type

from etbuild.files.program_file import operator_name
from etbuild.results import GraphBlock, GraphNode, MemoryPlan, MethodGraph, PlannedTensor

_MOST_TENSORS = 4000  # of a memory plan: a picture of more would not be readable
_MOST_USES = 5_000_000  # many instructions of a damaged file may name one long list


@dataclass(frozen=True)
class Instruction:
    """An instruction of a method.

    Attributes:
        name: The operator, the backend, or the kind of an instruction that computes nothing.
        kind: `operator`, `delegate` or `control`.
    """

    name: str
    kind: str


def listed(plan: ExecutionPlan) -> list[Instruction]:
    """The instructions of a method, in the order of their numbers in an ETDump. ExecuTorch writes only one chain."""
    return [Instruction(_called(plan, call), _KINDS.get(type(call), "control")) for call in _calls(plan)]


def memory_plan(plan: ExecutionPlan) -> MemoryPlan:
    """The places in a method's planned memory. If there are too many to show, only the largest.

    Loops and branches count as if each instruction ran once, in order.
    """
    uses = _uses(plan)
    last = max(0, len(uses) - 1)
    seen: dict[int, list[int]] = {}
    for number, (read, written) in enumerate(uses):
        for value in [*read, *written]:
            seen.setdefault(value, []).append(number)
    states = _states(plan)
    makers = {value: maker for value, maker in _makers(plan, uses).items() if value not in states}
    inputs, outputs = set(_tensors(plan, plan.inputs)), set(_tensors(plan, plan.outputs))
    found: list[PlannedTensor] = []
    for index, value in enumerate(plan.values):
        tensor = value.val
        if not isinstance(tensor, Tensor) or tensor.allocation_info is None:
            continue
        state = index not in makers and index not in inputs
        times = seen.get(index, [0])
        allocation = tensor.allocation_info
        found.append(
            {
                "arena": allocation.memory_id,
                "offset": (allocation.memory_offset_high << 32) + allocation.memory_offset_low,
                "bytes": _size(tensor),
                "first": 0 if state or index in inputs else min(times),
                "last": last if state or index in outputs else max(times),
                "of": makers.get(index, "input" if index in inputs else "state"),
            }
        )
    found.sort(key=lambda tensor: (-tensor["bytes"], tensor["arena"], tensor["offset"], tensor["first"]))
    kept = sorted(
        found[:_MOST_TENSORS], key=lambda tensor: (tensor["arena"], tensor["first"], tensor["offset"], tensor["last"])
    )
    return {"instructions": len(uses), "tensors": kept}


def missing_memory(plan: ExecutionPlan) -> int:
    """How many bytes a tensor reaches beyond the planned memory of its method; 0 if all tensors are inside."""
    most = 0
    for value in plan.values:
        tensor = value.val
        if isinstance(tensor, Tensor) and tensor.allocation_info is not None:
            place = tensor.allocation_info
            end = (place.memory_offset_high << 32) + place.memory_offset_low + _size(tensor)
            most = max(most, end - plan.non_const_buffer_sizes[place.memory_id])
    return most


def graph(plan: ExecutionPlan, compiled: list[int]) -> MethodGraph:
    """The graph of a method's instructions. A file does not tell what a backend took, so each call of one is a node.

    Args:
        plan: The method.
        compiled: The sizes in bytes of the outputs of backends, by their index in the program.
    """
    nodes: list[GraphNode] = [{"operator": "input", "inputs": []} for _ in plan.inputs]
    made = {value: [number] for number, index in enumerate(plan.inputs) for value in _tensors(plan, [index])}
    blocks: list[GraphBlock] = []
    for call, (read, written) in zip(_calls(plan), _uses(plan), strict=True):
        if not read and not written:
            continue
        inputs = list(dict.fromkeys(each for value in read for each in made.get(value, ())))
        node: GraphNode = {"operator": _called(plan, call), "inputs": inputs}
        if isinstance(call, DelegateCall):
            delegate = plan.delegates[call.delegate_index]
            size = compiled[delegate.processed.index] if delegate.processed.index < len(compiled) else 0
            node["block"] = len(blocks)
            blocks.append({"backend": delegate.id, "bytes": size})
        made.update({value: [len(nodes)] for value in written})
        nodes.append(node)
    results = {each for value in _tensors(plan, plan.outputs) for each in made.get(value, ())}
    nodes.append({"operator": "output", "inputs": sorted(results)})
    return {"nodes": nodes, "blocks": blocks, "weights": []}


_Call = object
_KINDS: dict[type, str] = {KernelCall: "operator", DelegateCall: "delegate"}


def _calls(plan: ExecutionPlan) -> list[_Call]:
    return [instruction.instr_args for chain in plan.chains for instruction in chain.instructions]


def _called(plan: ExecutionPlan, call: _Call) -> str:
    if isinstance(call, KernelCall):
        return operator_name(plan, call.op_index)
    return plan.delegates[call.delegate_index].id if isinstance(call, DelegateCall) else type(call).__name__


def _uses(plan: ExecutionPlan) -> list[tuple[list[int], list[int]]]:
    """The tensors that each instruction reads, and those that it writes. Raises ValueError if there are too many uses.

    A kernel writes its last argument. A delegate writes tensors that no instruction has written before.
    """
    written = set(_tensors(plan, plan.inputs))
    count, uses = 0, []
    for call in _calls(plan):
        read: list[int] = []
        made: list[int] = []
        if isinstance(call, KernelCall):
            read, made = list(_tensors(plan, call.args[:-1])), list(_tensors(plan, call.args[-1:]))
        elif isinstance(call, DelegateCall):
            for value in _tensors(plan, call.args):
                (made if _is_planned(plan, value) and value not in written else read).append(value)
        elif isinstance(call, MoveCall):
            read, made = list(_tensors(plan, [call.move_from])), list(_tensors(plan, [call.move_to]))
        count += len(read) + len(made)
        if count > _MOST_USES:
            raise ValueError("its instructions use too many tensors")
        written.update(made)
        uses.append(([value for value in read if value not in made], made))
    return uses


def _is_planned(plan: ExecutionPlan, value: int) -> bool:
    """Whether a value is a tensor in planned memory without initial values: the program holds those of a state."""
    tensor = plan.values[value].val
    return isinstance(tensor, Tensor) and tensor.allocation_info is not None and tensor.data_buffer_idx == 0


def _makers(plan: ExecutionPlan, uses: list[tuple[list[int], list[int]]]) -> dict[int, str]:
    makers: dict[int, str] = {}
    for call, (_, written) in zip(_calls(plan), uses, strict=True):
        for value in written:
            makers.setdefault(value, _called(plan, call))
    return makers


def _states(plan: ExecutionPlan) -> set[int]:
    """The tensors that have a value from an earlier call: a kernel reads them before any instruction has written them.

    A file does not tell what a delegate reads. But ExecuTorch copies to a planned tensor only at the end of a call, to
    keep the new value of a state.

    In a kernel's arguments, the result is twice at the end. If the kernel writes in place, it is an earlier argument
    and once at the end.
    """
    known, states = set(_tensors(plan, plan.inputs)), set[int]()
    for call in _calls(plan):
        if isinstance(call, KernelCall):
            states.update(value for value in _tensors(plan, call.args[:-2]) if value not in known)
            if operator_name(plan, call.op_index) == "aten::copy_":
                states.update(_tensors(plan, call.args[-1:]))
            known.update(_tensors(plan, call.args))
        elif isinstance(call, DelegateCall):
            known.update(_tensors(plan, call.args))
    return {value for value in states if _is_planned(plan, value)}


def _tensors(plan: ExecutionPlan, values: list[int]) -> Iterator[int]:
    """The tensors among values, also those in lists."""
    for value in values:
        if not 0 <= value < len(plan.values):
            continue
        content = plan.values[value].val
        if isinstance(content, Tensor):
            yield value
        elif isinstance(content, (TensorList, OptionalTensorList)):
            yield from (each for each in content.items if 0 <= each < len(plan.values))


def _size(tensor: Tensor) -> int:
    """The bytes of a tensor, with its upper bounds if its shape is dynamic."""
    count = 1
    for size in tensor.sizes:
        count *= max(0, size)
    dtype: torch.dtype = get_scalar_type(tensor.scalar_type)
    return count * int(dtype.itemsize)
