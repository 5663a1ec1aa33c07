"""Describes the content of a `.pte` or `.ptd` file. The file may come from any build, not only from this driver."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from executorch.exir._serialize import _program
from executorch.exir._serialize._cord import Cord
from executorch.exir._serialize._named_data_store import NamedDataStoreOutput
from executorch.exir._serialize._program import PTEFile
from executorch.exir._serialize.data_serializer import DataEntry
from executorch.exir.schema import (
    Buffer,
    DelegateCall,
    ExecutionPlan,
    KernelCall,
    Program,
    Tensor,
    TensorDataLocation,
    TensorShapeDynamism,
)
from executorch.exir.tensor import get_scalar_type
from executorch.extension.flat_tensor.serialize.flat_tensor_schema import FlatTensor
from executorch.extension.flat_tensor.serialize.serialize import (
    FlatTensorHeader,
    FlatTensorSerializer,
    _deserialize_to_flat_tensor,
)
from flatbuffers.number_types import Uint32Flags, Uint64Flags

from etbuild.errors import InputError
from etbuild.files import flatbuffer, regular_files
from etbuild.patching import replaced
from etbuild.results import FileHead, NamedDataFile, ProgramFacts, ProgramFile, ProgramMethod, TensorValue, Value

_SHARED = 64  # this many keys of named data may share one blob, on average


def describe(path: Path) -> ProgramFile | NamedDataFile:
    """The facts of one file, as JSON data.

    Returns:
        `kind` ("program" or "named_data"), `file` (the name), `size` in bytes and `sha256`. A program also has the
        result of `program_facts`. Named data also has `named_data`: the size in bytes of each blob by key.

    Raises:
        InputError: The file is neither a program nor named data, or it is damaged.
    """
    with flatbuffer.read_safely(path):
        with regular_files.opened(path) as file:
            data = file.read()
        head: FileHead = {"file": path.name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        identifier = data[4:6]
        if identifier == b"ET":
            return {"kind": "program", **head, **program_facts(read_program(data))}
        if identifier == b"FT":
            return {"kind": "named_data", **head, "named_data": _blob_sizes(data, len(data))}
    hint = "a program starts with the identifier ET12, named data with FT01, from the fifth byte on"
    raise InputError.of(f"{path}: neither a .pte nor a .ptd", hint)


def read_program(data: bytes | mmap.mmap) -> PTEFile:
    """Parses the content of a `.pte`. Blobs of named data are views of it.

    Raises:
        ValueError: The data ends too early.
        Exception: The data is not a program, or it is damaged. Errors of flatbuffers and struct have no common base.
    """
    memory = memoryview(data)  # without copies of gigabytes
    header = _program._get_extended_header(bytes(memory[: 8 + _program._ExtendedHeader.EXPECTED_LENGTH]))
    if header is not None and header.segment_base_offset + header.segment_data_size > len(memory):
        raise ValueError("it ends too early")
    size = len(memory) if header is None else min(header.program_size, len(memory))

    def restore(program: Program, segment_data: bytes) -> PTEFile:
        del segment_data  # below, no segments follow the head
        return _restore_segments(program, memory[header.segment_base_offset :])

    with flatbuffer.read_once(size), replaced(_program, "_restore_segments", restore):
        return _program.deserialize_pte_binary(bytes(memory[:size]))


def read_program_file(path: Path) -> PTEFile:
    """Does the same for a file. Named data is read only on use."""
    with regular_files.opened(path) as file:
        return read_program(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def template_digest(file: PTEFile, keys: Iterable[str]) -> str:
    """sha256 of a program without the content of its weights: of its methods, and of the outputs of backends.

    Keys of named data begin with the digest of a blob, so only their order counts. Two programs of one graph with
    different weights have one template, unless equal weights are at other places.

    Args:
        file: The content of the `.pte`.
        keys: The keys of its named data, in this file and in others.
    """
    digests = {match[0].encode() for key in keys if (match := re.match(r"[0-9a-f]{64}", key))}
    order: dict[bytes, int] = {}
    found = hashlib.sha256()
    compiled = [each.data for each in file.program.backend_delegate_data]
    plain = replace(
        file.program,
        backend_delegate_data=[],
        constant_buffer=[Buffer(storage=b"%d" % len(each.storage)) for each in file.program.constant_buffer],
        named_data=[],
        segments=[],
    )
    for part in (json.dumps(plain, default=_plain_data).encode(), *compiled):
        masked = bytearray(part)
        for key in re.finditer(rb"(?=([0-9a-f]{64}))", part):
            if key[1] in digests:
                masked[key.start(1) : key.end(1)] = b"%064d" % order.setdefault(key[1], len(order))
        found.update(b"%d\n" % len(part) + masked)
    return found.hexdigest()


def _plain_data(value: Any) -> list[Any] | str:
    """A part of a program for `json`. ExecuTorch's own encoder looks up the types of each field."""
    return value.hex() if isinstance(value, bytes) else [type(value).__name__, *vars(value).values()]


_restore_segments_of_program = _program._restore_segments


def _restore_segments(program: Program, memory: memoryview) -> PTEFile:
    """Restores segments as ExecuTorch does, but copies no named data, and refuses segments that overlap: ExecuTorch
    copies each segment and each tensor."""
    segments, named = program.segments, program.named_data or []
    sizes = [segment.size for segment in segments]
    parts = [program.constant_segment, *(program.mutable_data_segments or ())]
    in_order = all(list(part.offsets) == sorted(part.offsets) for part in parts if part is not None)
    named_size = sum(sizes[entry.segment_index] for entry in named)
    if sum(sizes) > len(memory) or named_size > _SHARED * len(memory) or not in_order:
        raise ValueError("its segments overlap")
    program.named_data = []
    file = _restore_segments_of_program(program=program, segment_data=memory)
    for delegate in file.program.backend_delegate_data:
        delegate.data = bytes(delegate.data)
    for buffer in (*file.program.constant_buffer, *(file.mutable_data or ())):
        buffer.storage = bytes(buffer.storage)
    buffers = [memory[segment.offset : segment.offset + segment.size] for segment in segments]
    entries = {entry.key: DataEntry(entry.segment_index, 1, None) for entry in named}
    return replace(file, named_data=NamedDataStoreOutput(buffers, entries, {}) if entries else None)


def named_data_facts(path: Path) -> dict[str, int]:
    """The size in bytes of each blob of a named-data file, by key. Does not read the blobs.

    Raises:
        ValueError: The file ends too early.
        Exception: The file is not named data, or it is damaged.
    """
    with regular_files.opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        header = _named_data_header(file.read(8 + FlatTensorHeader.EXPECTED_LENGTH), size)
        file.seek(0)
        return _blob_sizes(file.read(header.flatbuffer_offset + header.flatbuffer_size), size)


def _blob_sizes(head: bytes, size: int) -> dict[str, int]:
    header = _named_data_header(head, size)
    end = header.flatbuffer_offset + header.flatbuffer_size
    with flatbuffer.read_once(min(end, len(head))):
        return dict(sorted(_listed(head[:end])))


def _listed(head: bytes) -> Iterator[tuple[str, int]]:
    """The key and size in bytes of each blob of named data, read as `flat_tensor.fbs` of ExecuTorch 1.5 defines it.

    ExecuTorch itself makes `flatc` write everything as JSON, which may be larger than any disk.
    """
    root = flatbuffer.root(head)
    sizes = [flatbuffer.number(segment, 1, Uint64Flags) for segment in flatbuffer.tables(root, 1)]
    for named in flatbuffer.tables(root, 2):
        offset = named.Offset(flatbuffer.slot(0))
        if not offset:
            raise ValueError("a blob has no key")
        yield named.String(named.Pos + offset).decode(), sizes[flatbuffer.number(named, 1, Uint32Flags)]


def _named_data_header(head: bytes, size: int) -> FlatTensorHeader:
    header = FlatTensorHeader.from_bytes(head[8:])
    if header.segment_base_offset + header.segment_data_size > size:
        raise ValueError("it ends too early")
    return header


def named_data_content(head: bytes) -> FlatTensor:
    """The description of the blobs in a named-data file, which is before the blobs."""
    header = FlatTensorHeader.from_bytes(head[8:])
    return _deserialize_to_flat_tensor(head[: header.flatbuffer_offset + header.flatbuffer_size])


def named_data_blobs(data: bytes) -> dict[str, bytes]:
    """The blobs of a named-data file, by key.

    Raises:
        ValueError: The data ends too early.
        Exception: The data is not named data, or it is damaged.
    """
    _named_data_header(data, len(data))
    payload = FlatTensorSerializer().deserialize(Cord(data))
    return {key: bytes(payload.buffers[entry.buffer_index]) for key, entry in sorted(payload.named_data.items())}


def program_facts(file: PTEFile) -> ProgramFacts:
    """The facts of a program: its methods by name, the bytes of its blobs, and the keys of tensors in other files."""
    program = file.program
    return {
        "methods": {
            plan.name: _method_facts(plan) for plan in sorted(program.execution_plan, key=lambda plan: plan.name)
        },
        "bytes": {
            "constants": [len(buffer.storage) for buffer in program.constant_buffer if buffer.storage],
            "mutable": [len(buffer.storage) for buffer in file.mutable_data or () if buffer.storage],
            "delegates": [len(data.data) for data in program.backend_delegate_data],
            "named_data": pte_named_data(file),
        },
        "external_keys": external_keys(file),
    }


def pte_named_data(file: PTEFile) -> dict[str, int]:
    """The size in bytes of each named blob inside the program, by key."""
    if file.named_data is None:
        return {}
    buffers = file.named_data.buffers
    return {key: len(buffers[entry.buffer_index]) for key, entry in sorted(file.named_data.pte_data.items())}


def external_keys(file: PTEFile) -> list[str]:
    """Names of the tensors that the program expects in named-data files. Leaves out those for delegates only."""
    names = set()
    for plan in file.program.execution_plan:
        for value in plan.values:
            info = value.val.extra_tensor_info if isinstance(value.val, Tensor) else None
            if info is not None and info.location == TensorDataLocation.EXTERNAL:
                names.add(info.fully_qualified_name)
    return sorted(names)


def _method_facts(plan: ExecutionPlan) -> ProgramMethod:
    calls = [instruction.instr_args for chain in plan.chains for instruction in chain.instructions]
    operators = Counter(operator_name(plan, call.op_index) for call in calls if isinstance(call, KernelCall))
    delegates = Counter(plan.delegates[call.delegate_index].id for call in calls if isinstance(call, DelegateCall))
    return {
        "inputs": [_value_facts(plan, index) for index in plan.inputs],
        "outputs": [_value_facts(plan, index) for index in plan.outputs],
        "operators": dict(sorted(operators.items())),
        "delegates": dict(sorted(delegates.items())),
        "memory": plan.non_const_buffer_sizes[1:],  # index 0 is reserved for constants
    }


def operator_name(plan: ExecutionPlan, index: int) -> str:
    """The name of a method's operator, such as `aten::add.out`."""
    operator = plan.operators[index]
    return f"{operator.name}.{operator.overload}" if operator.overload else operator.name


def _value_facts(plan: ExecutionPlan, index: int) -> Value:
    """For a tensor: dtype, shape (upper bounds if dynamic), whether it is dynamic, and the order of its dimensions in
    memory unless it is row-major. For another value: the type and the value."""
    value = plan.values[index].val
    if isinstance(value, Tensor):
        facts: TensorValue = {
            "dtype": str(get_scalar_type(value.scalar_type)).removeprefix("torch."),
            "shape": list(value.sizes),
            "dynamic": value.shape_dynamism != TensorShapeDynamism.STATIC,
        }
        order = list(value.dim_order)
        return facts if order == sorted(order) else {**facts, "dim_order": order}
    content = next((content for name, content in vars(value).items() if name.endswith(("_val", "items"))), None)
    return {"type": type(value).__name__.lower(), "value": content}
