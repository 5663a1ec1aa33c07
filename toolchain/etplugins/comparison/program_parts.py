"""Digests of the parts of a program that decide what each of its methods computes.

Methods of one file share lists of constants, of delegates' outputs and of named data, and refer to them by numbers. An
edit of one method changes the numbers of others. So a part has the content in place of the number.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from executorch.exir._serialize._program import PTEFile
from executorch.exir.schema import BackendDelegate, DataLocation, ExecutionPlan, Tensor, TensorDataLocation
from executorch.exir.tensor import get_scalar_type

from etbuild.files import flatbuffer, program_file

_NAMES_ITS_DATA = "XnnpackBackend"
"""The backend whose outputs hold the keys of the named data that they read, as text."""


def method_digests(program: Path) -> dict[str, str]:
    """For each method of a `.pte`, sha256 of all in the file that decides what the method computes.

    These are its instructions and values, the constants and mutable data that they name, the outputs of its backends,
    and the named data that these read. If it is unknown who reads a blob of named data, each method's digest has it.

    Raises:
        InputError: The file is damaged.
    """
    with flatbuffer.read_safely(program):
        file = program_file.read_program_file(program)
        return {plan.name: _Part(file, plan).digest() for plan in file.program.execution_plan}


class _Part:
    """The part of one method."""

    def __init__(self, file: PTEFile, plan: ExecutionPlan) -> None:
        self._file, self._plan = file, plan

    def digest(self) -> str:
        content = json.dumps(
            [self._file.program.version, self._plan, self._named_data()], default=self._plain, sort_keys=True
        )
        return hashlib.sha256(content.encode()).hexdigest()

    def _plain(self, value: Any) -> object:
        """A part of a method for `json`."""
        if isinstance(value, bytes):
            return value.hex()
        fields = dict(vars(value))
        if isinstance(value, Tensor):
            fields["data_buffer_idx"] = self._content_of(value)
        elif isinstance(value, BackendDelegate):
            fields["processed"] = _sha256(self._output_of(value))
        return [type(value).__name__, *fields.values()]

    def _content_of(self, tensor: Tensor) -> object:
        """The initial content of a tensor; None if it has none here. All mutable data counts for a tensor that has some.

        A tensor of a `.ptd` has its name in the program, and the caller counts those files. A constant ends where the next one begins, so a part of the file has zeros after the elements.
        """
        info = tensor.extra_tensor_info
        if info is not None and info.location == TensorDataLocation.EXTERNAL:
            return None
        if tensor.allocation_info is None:
            size = math.prod(tensor.sizes) * get_scalar_type(tensor.scalar_type).itemsize
            return _sha256(self._file.program.constant_buffer[tensor.data_buffer_idx].storage[:size])
        if not tensor.data_buffer_idx:
            return None
        return [_sha256(each.storage) for each in self._file.mutable_data or ()]

    def _output_of(self, delegate: BackendDelegate) -> bytes:
        if delegate.processed.location != DataLocation.INLINE:
            raise ValueError("an output of a backend is elsewhere")  # `read_program` has restored all
        content: bytes = self._file.program.backend_delegate_data[delegate.processed.index].data
        return content

    def _named_data(self) -> Mapping[str, str]:
        """The digests of the blobs that the method may read, by key."""
        named = self._file.named_data
        if named is None:
            return {}
        plans = self._file.program.execution_plan
        own, others = (set(self._keys(each)) for each in ([self._plan], [p for p in plans if p is not self._plan]))
        backends = {delegate.id for plan in plans for delegate in plan.delegates}
        known = backends <= {_NAMES_ITS_DATA}
        return {
            key: _sha256(named.buffers[entry.buffer_index])
            for key, entry in sorted(named.pte_data.items())
            if not known or key in own or key not in others
        }

    def _keys(self, plans: list[ExecutionPlan]) -> Iterator[str]:
        """The keys of named data that some methods have as text."""
        assert self._file.named_data is not None
        keys = [*self._file.named_data.pte_data]
        for plan in plans:
            outputs = [self._output_of(delegate) for delegate in plan.delegates]
            tensors = [each.val for each in plan.values if isinstance(each.val, Tensor)]
            infos = [each.extra_tensor_info for each in tensors if each.extra_tensor_info is not None]
            names = {info.fully_qualified_name for info in infos}
            yield from (key for key in keys if key in names or any(key.encode() in output for output in outputs))


def _sha256(content: Any) -> str:
    return hashlib.sha256(content).hexdigest()
