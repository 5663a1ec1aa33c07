"""Lists the kernels that the methods of a `.pte` call, without PyTorch.

The numbers of fields are those of `program.fbs` in ExecuTorch 1.5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from flatbuffers.number_types import Int8Flags, Int32Flags
from flatbuffers.table import Table

from etbuild.errors import InputError
from etbuild.files import flatbuffer, regular_files

Kernels = Mapping[str, frozenset[str]]
"""For each operator, such as `aten::add.out`, the dtypes of its tensors, such as `float32`."""

_IDENTIFIER = b"ET12"
_PLANS, _NAME, _VALUES, _CHAINS, _OPERATORS = 1, 0, 2, 5, 6
_INSTRUCTIONS, _KERNEL_CALL = 2, 1
_TENSOR, _LISTS = 5, (10, 11)

DTYPES = (
    *("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"),
    *("complex32", "complex64", "complex128", "bool", "qint8", "quint8", "qint32", "bfloat16"),
    *("quint4x2", "quint2x4", "bits1x8", "bits2x4", "bits4x2", "bits8", "bits16"),
    *("float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz", "uint16", "uint32", "uint64"),
)
"""The names of dtypes. The index is the number of the dtype in programs and in keys of kernels."""


def dtype_name(number: int) -> str:
    """The name of a dtype."""
    return DTYPES[number] if 0 <= number < len(DTYPES) else f"dtype {number}"


def read(path: Path) -> dict[str, Kernels]:
    """The kernels that each method of a program calls. What a delegate computes needs no kernel.

    Raises:
        InputError: The file cannot be read, is not a program, or is damaged.
    """
    try:
        with regular_files.opened(path) as file:
            data = file.read()
    except OSError as error:
        raise InputError.of(f"{path}: cannot read the file: {error.strerror}") from None
    if data[4:8] != _IDENTIFIER:
        raise InputError.of(f"{path}: not a .pte", "a program has the identifier ET12 from its fifth byte on")
    try:
        with flatbuffer.read_once(len(data)):
            methods = dict(_methods(flatbuffer.root(data)))
    except Exception as error:  # errors of flatbuffers and struct have no common base
        raise InputError.of(f"{path}: the file is damaged: {error}") from error
    if not methods:
        raise InputError.of(f"{path}: the file is damaged: it has no methods")
    return methods


def _methods(program: Table) -> Iterator[tuple[str, Kernels]]:
    for plan in flatbuffer.tables(program, _PLANS):
        operators = [_operator_name(operator) for operator in flatbuffer.tables(plan, _OPERATORS)]
        values = [flatbuffer.union(value, 0) for value in flatbuffer.tables(plan, _VALUES)]
        found: dict[str, set[str]] = {}
        for chain in flatbuffer.tables(plan, _CHAINS):
            for instruction in flatbuffer.tables(chain, _INSTRUCTIONS):
                kind, call = flatbuffer.union(instruction, 0)
                if kind == _KERNEL_CALL:
                    operator = operators[flatbuffer.number(call, 0, Int32Flags)]
                    found.setdefault(operator, set()).update(_dtypes(values, flatbuffer.numbers(call, 1)))
        yield flatbuffer.text(plan, _NAME), {name: frozenset(dtypes) for name, dtypes in sorted(found.items())}


def _operator_name(operator: Table) -> str:
    name, overload = flatbuffer.text(operator, 0), flatbuffer.text(operator, 1)
    return f"{name}.{overload}" if overload else name


def _dtypes(values: list[tuple[int, Table]], indices: list[int]) -> Iterator[str]:
    """The dtypes of the tensors among the values with these indices, also of those in lists."""
    for index in indices:
        if not 0 <= index < len(values):
            continue  # -1 stands for no value
        kind, value = values[index]
        if kind == _TENSOR:
            yield dtype_name(flatbuffer.number(value, 0, Int8Flags))
        elif kind in _LISTS:
            # A list holds indices of tensors. A list in a list would mean that the file is damaged.
            listed = flatbuffer.numbers(value, 0)
            yield from _dtypes(
                values, [each for each in listed if values[each : each + 1] and values[each][0] == _TENSOR]
            )
