"""Faults in what was emitted, for mutations.py: instructions, memory, and the content of constants."""

from __future__ import annotations

import copy
import itertools
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace

from executorch.exir.schema import Bool, DelegateCall, Double, EValue, ExecutionPlan, KernelCall, Tensor

from benchmarks.comparison.method import Fault
from etbuild.emit.emitted import Emitted
from etbuild.lower.blobs import Blob

EmittedKind = Callable[[Emitted, random.Random], Iterator[Fault]]


def _instruction_dropped(emitted: Emitted, rng: random.Random) -> Iterator[Fault]:
    for plan in emitted.plans:
        calls = plan.chains[0].instructions
        for index, call in enumerate(calls):
            if isinstance(call.instr_args, KernelCall):

                def plant(plan: ExecutionPlan = plan, index: int = index) -> None:
                    del plan.chains[0].instructions[index]
                    if plan.name in emitted.facts:
                        del emitted.facts[plan.name].instructions[index]

                yield Fault(f"`{plan.name}`: instruction {index} ({_called(plan, call.instr_args)}) dropped", plant)


def _instruction_early(emitted: Emitted, rng: random.Random) -> Iterator[Fault]:
    for plan in emitted.plans:
        calls = plan.chains[0].instructions
        for index, (one, other) in enumerate(itertools.pairwise(calls)):
            if {*_tensors(plan, one.instr_args)} & {*_tensors(plan, other.instr_args)}:

                def plant(plan: ExecutionPlan = plan, index: int = index) -> None:
                    calls = plan.chains[0].instructions
                    calls[index], calls[index + 1] = calls[index + 1], calls[index]

                yield Fault(f"`{plan.name}`: instruction {index + 1} runs before instruction {index}", plant)


def _memory_shared(emitted: Emitted, rng: random.Random) -> Iterator[Fault]:
    """A value is written where another one is still needed."""
    for plan in emitted.plans:
        seen: dict[int, list[int]] = {}
        for index, call in enumerate(plan.chains[0].instructions):
            for value in _tensors(plan, call.instr_args):
                seen.setdefault(value, []).append(index)
        planned = {value: times for value, times in seen.items() if plan.values[value].val.allocation_info is not None}
        for one, other in itertools.permutations(planned, 2):
            a, b = plan.values[one].val, plan.values[other].val
            place, own = a.allocation_info, b.allocation_info
            if min(planned[one]) < min(planned[other]) < max(planned[one]) and place != own and _size(b) <= _size(a):

                def plant(b: Tensor = b, place: object = place) -> None:
                    b.allocation_info = copy.copy(place)

                yield Fault(f"`{plan.name}`: value {other} has the memory of value {one}, which is still needed", plant)


def _operands(emitted: Emitted, rng: random.Random) -> Iterator[Fault]:
    for plan in emitted.plans:
        for index, call in enumerate(plan.chains[0].instructions):
            args = call.instr_args.args if isinstance(call.instr_args, KernelCall) else []
            forms = [_form(plan, value) for value in args[:2]]
            if len(args) > 2 and args[0] != args[1] and forms[0] is not None and forms[0] == forms[1]:

                def plant(args: list[int] = args) -> None:
                    args[0], args[1] = args[1], args[0]

                called = _called(plan, call.instr_args)
                yield Fault(f"`{plan.name}`: operands of instruction {index} ({called}) swapped", plant)


def _form(plan: ExecutionPlan, value: int) -> object:
    """The shape and dtype of a value; None if it is no tensor."""
    found = plan.values[value].val
    return (found.sizes, found.scalar_type) if isinstance(found, Tensor) else None


def _number(emitted: Emitted, rng: random.Random) -> Iterator[Fault]:
    for plan in emitted.plans:
        for index, call in enumerate(plan.chains[0].instructions):
            for place, value in enumerate(call.instr_args.args if isinstance(call.instr_args, KernelCall) else []):
                own = plan.values[value].val
                other: Double | Bool
                if isinstance(own, Double) and isinstance(own.double_val, float) and abs(own.double_val) < 1e30:
                    other = Double(own.double_val * 1.01 if own.double_val else 0.01)
                elif isinstance(own, Bool):
                    other = Bool(not own.bool_val)
                else:
                    continue

                def plant(
                    plan: ExecutionPlan = plan, index: int = index, place: int = place, other: object = other
                ) -> None:
                    plan.values.append(EValue(other))
                    plan.chains[0].instructions[index].instr_args.args[place] = len(plan.values) - 1

                called = _called(plan, call.instr_args)
                yield Fault(f"`{plan.name}`: {other} in place of {own} in instruction {index} ({called})", plant)


def _content(emitted: Emitted, rng: random.Random) -> Iterator[Fault]:
    """One number of a constant, or of a weight that a delegate stores, has the other sign."""
    for index, blob in enumerate(emitted.constants):
        changed, what = _with_other_number(blob, rng)
        if changed is not None:

            def plant(index: int = index, changed: Blob = changed) -> None:
                emitted.constants[index] = changed

            yield Fault(f"constant {index}: {what}", plant)
    for index, (key, request) in enumerate(emitted.requests):
        changed, what = _with_other_number(request.data, rng)
        if changed is not None:

            def plant_request(index: int = index, changed: Blob = changed) -> None:
                key, _ = emitted.requests[index]
                for number, (other, request) in enumerate(emitted.requests):
                    if other == key:
                        emitted.requests[number] = (key, replace(request, data=changed))

            yield Fault(f"named data {key[:12]}: {what}", plant_request)


def _with_other_number(blob: Blob, rng: random.Random) -> tuple[Blob | None, str]:
    content = bytearray(bytes(blob.content))
    if len(content) < 4 or len(content) % 4:
        return None, ""
    place = 4 * rng.randrange(len(content) // 4)
    (value,) = struct.unpack_from("<f", content, place)
    if not 1e-3 < abs(value) < 1e3:  # it may be no float
        return None, ""
    struct.pack_into("<f", content, place, -value)
    return Blob(bytes(content)), f"the number at byte {place} has the other sign"


def _tensors(plan: ExecutionPlan, call: object) -> list[int]:
    args = call.args if isinstance(call, (KernelCall, DelegateCall)) else []
    return [value for value in args if isinstance(plan.values[value].val, Tensor)]


def _called(plan: ExecutionPlan, call: KernelCall) -> str:
    return str(plan.operators[call.op_index].name).removeprefix("aten::")


def _size(tensor: Tensor) -> int:
    size = 1
    for each in tensor.sizes:
        size *= each
    return size


EMITTED_KINDS: dict[str, EmittedKind] = {
    "emitted: instruction dropped": _instruction_dropped,
    "emitted: instruction too early": _instruction_early,
    "emitted: memory of two values": _memory_shared,
    "emitted: operands swapped": _operands,
    "emitted: number of an instruction": _number,
    "emitted: content of a constant": _content,
}
