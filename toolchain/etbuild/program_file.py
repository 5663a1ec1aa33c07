"""What is in a `.pte` or `.ptd`, read from the file itself: any file of ExecuTorch's, also one made elsewhere."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

from executorch.exir._serialize._cord import Cord
from executorch.exir._serialize._program import PTEFile, _get_extended_header, deserialize_pte_binary
from executorch.exir.schema import (
    DelegateCall,
    ExecutionPlan,
    KernelCall,
    Tensor,
    TensorDataLocation,
    TensorShapeDynamism,
)
from executorch.exir.tensor import get_scalar_type
from executorch.extension.flat_tensor.serialize.flat_tensor_schema import FlatTensor, NamedData
from executorch.extension.flat_tensor.serialize.serialize import (
    FlatTensorHeader,
    FlatTensorSerializer,
    _deserialize_to_flat_tensor,
)

from etbuild.errors import InputError, Problem


def describe(path: Path) -> dict[str, Any]:
    """The facts of one file, as JSON data.

    Returns:
        `kind` ("program" or "named_data"), `size` in bytes and `sha256`; of a program what `program_facts` gives, of
        named data `named_data`: the size in bytes of each blob by key.

    Raises:
        InputError: It is neither, or it is damaged.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError([Problem(f"{path}: cannot read the file: {error.strerror}")]) from None
    facts = {"file": path.name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    identifier = data[4:6]
    try:
        if identifier == b"ET":
            return {"kind": "program", **facts, **program_facts(read_program(data))}
        if identifier == b"FT":
            return {"kind": "named_data", **facts, "named_data": named_data_facts(path)}
    except Exception as error:  # flatbuffers and struct have no common base of their errors
        raise InputError([Problem(f"{path}: the file is damaged, or of another version: {error}")]) from error
    raise InputError(
        [
            Problem(
                f"{path}: neither a .pte nor a .ptd",
                hint="a program starts with the identifier ET12, named data with FT01, from the fifth byte on",
            )
        ]
    )


def read_program(data: bytes) -> PTEFile:
    """The content of a `.pte`.

    Raises:
        ValueError: It ends too early.
        Exception: It is no program, or it is damaged; flatbuffers and struct have no common base of their errors.
    """
    header = _get_extended_header(data)
    if header is not None and header.segment_base_offset + header.segment_data_size > len(data):
        raise ValueError("it ends too early")
    return deserialize_pte_binary(data)


def named_data_facts(path: Path) -> dict[str, int]:
    """The size in bytes of each blob of a named-data file, by key. The blobs are not read.

    Raises:
        Exception: As `named_data_blobs`.
    """
    with path.open("rb") as file:
        header = _named_data_header(file.read(8 + FlatTensorHeader.EXPECTED_LENGTH), path.stat().st_size)
        file.seek(0)
        content = named_data_content(file.read(header.flatbuffer_offset + header.flatbuffer_size))
    return {named.key: content.segments[named.segment_index].size for named in sorted(content.named_data, key=_key)}


def _key(named: NamedData) -> str:
    key: str = named.key
    return key


def _named_data_header(head: bytes, size: int) -> FlatTensorHeader:
    header = FlatTensorHeader.from_bytes(head[8:])
    if header.segment_base_offset + header.segment_data_size > size:
        raise ValueError("it ends too early")
    return header


def named_data_content(head: bytes) -> FlatTensor:
    """What a named-data file says of its blobs, given the part in front of them."""
    header = FlatTensorHeader.from_bytes(head[8:])
    return _deserialize_to_flat_tensor(head[: header.flatbuffer_offset + header.flatbuffer_size])


def named_data_blobs(data: bytes) -> dict[str, bytes]:
    """The blobs of a named-data file, by key.

    Raises:
        ValueError: It ends too early.
        Exception: It is no named data, or it is damaged.
    """
    _named_data_header(data, len(data))
    payload = FlatTensorSerializer().deserialize(Cord(data))
    return {key: bytes(payload.buffers[entry.buffer_index]) for key, entry in sorted(payload.named_data.items())}


def program_facts(file: PTEFile) -> dict[str, Any]:
    """The facts of a program: its methods by name, and its bytes by blob."""
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
    """Names of the tensors that the program expects in named-data files. Delegates alone know what they ask for."""
    found = set()
    for plan in file.program.execution_plan:
        for value in plan.values:
            info = value.val.extra_tensor_info if isinstance(value.val, Tensor) else None
            if info is not None and info.location == TensorDataLocation.EXTERNAL:
                found.add(info.fully_qualified_name)
    return sorted(found)


def _method_facts(plan: ExecutionPlan) -> dict[str, Any]:
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
    """The name of a method's operator, as `aten::add.out`."""
    operator = plan.operators[index]
    return f"{operator.name}.{operator.overload}" if operator.overload else operator.name


def _value_facts(plan: ExecutionPlan, index: int) -> dict[str, Any]:
    """A tensor as dtype, shape (upper bounds where dynamic) and whether it is dynamic; else the type and the value."""
    value = plan.values[index].val
    if isinstance(value, Tensor):
        return {
            "dtype": str(get_scalar_type(value.scalar_type)).removeprefix("torch."),
            "shape": list(value.sizes),
            "dynamic": value.shape_dynamism != TensorShapeDynamism.STATIC,
        }
    content = next((content for name, content in vars(value).items() if name.endswith(("_val", "items"))), None)
    return {"type": type(value).__name__.lower(), "value": content}
