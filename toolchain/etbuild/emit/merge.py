"""Merges methods that were emitted one by one into one program, as if ExecuTorch had emitted them together.

ExecuTorch emits methods in the order of their names. It numbers constants, initial values and delegates as it meets
them, and writes equal content once. So the numbers of a joint emission follow from the numbers in each method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from executorch.exir.schema import (
    BackendDelegateInlineData,
    Buffer,
    ExecutionPlan,
    Program,
    SubsegmentOffsets,
    Tensor,
    TensorDataLocation,
)
from executorch.exir.version import EXECUTORCH_SCHEMA_VERSION

from etbuild.emit import shared_buffers
from etbuild.emit.emitted import Emitted
from etbuild.lower.blobs import Blob

if TYPE_CHECKING:
    from executorch.exir._serialize._cord import CordBuffer


@dataclass(frozen=True)
class Merged:
    """What ExecuTorch writes of an `EmitterOutput`, whose names the attributes have."""

    program: Program
    mutable_data: list[Buffer] | None
    external_constant_buffer: list[CordBuffer]
    external_constant_map: dict[str, dict[str, int]]


def merge(parts: Sequence[Emitted], constant_methods: Mapping[str, object]) -> Merged:
    """Merges emitted methods.

    Args:
        parts: The methods, in the order of their names. Their plans are changed in place.
        constant_methods: The values of the program's constant methods, by name.

    Raises:
        BuildError: Methods that share buffers plan their memory differently.
    """
    buffers = {name: facts.buffers for part in parts for name, facts in part.facts.items() if facts.buffers is not None}
    if buffers:
        shared_buffers.lay_out({plan.name: plan for part in parts for plan in part.plans}, buffers)
    plans = [plan for part in parts for plan in part.plans if plan.name in part.facts]
    for_training = [plan for part in parts for plan in part.plans if plan.name not in part.facts]
    pools = {"constants": _Pool(1), "mutable": _Pool(1), "delegates": _Pool(0), "external": _Pool(0)}
    names: dict[str, dict[str, int]] = {}
    added = _constant_methods(constant_methods)
    for part in [*parts, added]:
        numbers = {kind: pool.add(getattr(part, kind), part.bound) for kind, pool in pools.items()}
        for plan in part.plans:
            _number(plan, numbers)
        for shard, of_shard in part.external_names.items():
            names.setdefault(shard, {}).update({name: numbers["external"][index] for name, index in of_shard.items()})
    blobs = {kind: pool.blobs for kind, pool in pools.items()}
    return Merged(
        program=Program(
            version=EXECUTORCH_SCHEMA_VERSION,
            execution_plan=[*plans, *for_training, *added.plans],
            constant_buffer=[Buffer(blob.content) for blob in blobs["constants"]],
            backend_delegate_data=[BackendDelegateInlineData(blob.content) for blob in blobs["delegates"]],
            segments=[],
            constant_segment=SubsegmentOffsets(segment_index=0, offsets=[]),
            mutable_data_segments=None,
        ),
        mutable_data=[Buffer(blob.content) for blob in blobs["mutable"]] if len(blobs["mutable"]) > 1 else None,
        external_constant_buffer=[blob.content for blob in blobs["external"]],
        external_constant_map=names,
    )


class _Pool:
    """The blobs of a kind. Equal blobs of different parts become one, and so do equal blobs of a bound part. The first
    `reserved` blobs of each part have no content."""

    def __init__(self, reserved: int) -> None:
        self.blobs: list[Blob] = []
        self._reserved = reserved
        self._numbers: dict[str, int] = {}

    def add(self, blobs: Sequence[Blob], bound: bool) -> list[int]:
        """Adds the blobs of a part, and returns the number of each."""
        if not self.blobs and not bound:  # ExecuTorch has merged equal ones already. One part needs no digests.
            self.blobs = list(blobs)
            return list(range(len(blobs)))
        if len(blobs) > self._reserved and not self._numbers:
            self._numbers = {blob.sha256: number for number, blob in list(enumerate(self.blobs))[self._reserved :]}
        self.blobs = self.blobs or list(blobs[: self._reserved])
        numbers = list(range(self._reserved))
        for blob in blobs[self._reserved :]:
            number = self._numbers.setdefault(blob.sha256, len(self.blobs))
            if number == len(self.blobs):
                self.blobs.append(blob)
            numbers.append(number)
        return numbers


def _number(plan: ExecutionPlan, numbers: Mapping[str, list[int]]) -> None:
    """Gives the constants and delegates of a plan their numbers in the program: `numbers` has them by kind."""
    for delegate in plan.delegates:
        delegate.processed.index = numbers["delegates"][delegate.processed.index]
    for value in plan.values:
        tensor = value.val
        if isinstance(tensor, Tensor):
            info = tensor.extra_tensor_info
            if info is not None and info.location == TensorDataLocation.EXTERNAL:
                tensor.data_buffer_idx = numbers["external"][tensor.data_buffer_idx]
            elif tensor.data_buffer_idx > 0:
                kind = "constants" if tensor.allocation_info is None else "mutable"
                tensor.data_buffer_idx = numbers[kind][tensor.data_buffer_idx]


def _constant_methods(values: Mapping[str, object]) -> Emitted:
    """Emits constant methods. ExecuTorch emits them only beside another method."""
    from executorch.exir.emit._emitter import _Emitter, _EmitterState, _ProgramState

    state = _ProgramState()
    nothing = torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph())
    nothing.meta["non_const_buffer_sizes"] = [0]
    emitter = _Emitter(nothing, _EmitterState([], [], [], {}, False, False), state)
    plans = emitter._emit_prim_getters(dict(sorted(values.items())))
    constants = [Blob(buffer.storage) for buffer in state.constant_buffer]
    return Emitted(
        plans=plans,
        constants=constants,
        mutable=constants[:1],
        delegates=[],
        external=[],
        external_names={},
        requests=[],
        claims={},
        compares_content=False,
        non_finite={},
        facts={},
    )
