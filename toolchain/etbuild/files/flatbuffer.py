"""Reads flatbuffers as tables of numbered fields, without PyTorch, and stops at a hostile one.

ExecuTorch's own classes for its schemas import PyTorch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flatbuffers.number_types import Int32Flags
from flatbuffers.table import Table

from etbuild.errors import InputError
from etbuild.patching import replaced

_READS = 4  # reading may take this many times the size of a flatbuffer; ExecuTorch's files take it once


@contextmanager
def read_once(size: int) -> Iterator[None]:
    """Within this context, reading a flatbuffer of `size` bytes raises ValueError if it expands to many more bytes.

    Many places of a flatbuffer may point to one part, and each reads it again. So a few kB could become terabytes.
    """
    left = _READS * size
    length_of, string_of = Table.VectorLen, Table.String

    def count(number: int) -> None:
        nonlocal left
        left -= number + 1
        if left < 0:
            raise ValueError("it stands for much more than its bytes")

    def vector_length(table: Table, offset: int) -> int:
        number: int = length_of(table, offset)
        count(number)
        return number

    def string(table: Table, offset: int) -> bytes:
        text: bytes = string_of(table, offset)
        count(len(text))
        return text

    with replaced(Table, "VectorLen", vector_length), replaced(Table, "String", string):
        yield


@contextmanager
def read_safely(path: Path) -> Iterator[None]:
    """Within this context, each error becomes an InputError that names the file: it is unreadable or damaged."""
    try:
        yield
    except OSError as error:
        raise InputError.of(f"{path}: cannot read the file: {error.strerror}") from None
    except Exception as error:  # errors of flatbuffers and struct have no common base
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> InputError:
    """The error about a damaged file, from the error of its reader. Only the text of a `ValueError` is ours."""
    if type(error) is ValueError:
        why = str(error)
    elif isinstance(error, UnicodeDecodeError):
        why = "a text in it is not UTF-8"
    elif isinstance(error, (struct.error, IndexError)):
        why = "it refers to a place outside of itself"
    else:
        why = "a value in it is missing or of another kind"
    return InputError.of(f"{path}: the file is damaged, or of another version: {why}")


def root(data: bytes) -> Table:
    """The table that a flatbuffer begins with."""
    return Table(data, int.from_bytes(data[:4], "little"))


def slot(field: int) -> int:
    """The place of a field in a table of offsets. Fields count from 0, in the order of the schema."""
    return 4 + 2 * field  # a table of offsets begins with its own size and that of the fields


def number(table: Table, field: int, kind: type, missing: int = 0) -> int:
    """A number; `missing` if the table does not have it. `kind` is one of `flatbuffers.number_types`."""
    return int(table.GetSlot(slot(field), missing, kind))


def inner(table: Table, field: int) -> Table | None:
    """A table in a field of another one; None if it is missing."""
    offset = table.Offset(slot(field))
    return Table(table.Bytes, table.Indirect(table.Pos + offset)) if offset else None


def tables(table: Table, field: int) -> Iterator[Table]:
    """The tables of a vector."""
    offset = table.Offset(slot(field))
    if offset:
        start = table.Vector(offset)
        for index in range(table.VectorLen(offset)):
            yield Table(table.Bytes, table.Indirect(start + 4 * index))


def numbers(table: Table, field: int) -> list[int]:
    """The numbers of a vector of 32-bit integers."""
    offset = table.Offset(slot(field))
    if not offset:
        return []
    start = table.Vector(offset)
    return [int(table.Get(Int32Flags, start + 4 * index)) for index in range(table.VectorLen(offset))]


def text(table: Table, field: int) -> str:
    """A string; empty if it is missing."""
    offset = table.Offset(slot(field))
    return table.String(table.Pos + offset).decode() if offset else ""


def union(table: Table, field: int) -> tuple[int, Table]:
    """A union: the number of its type, from 1 in the order of the schema, and its table.

    Args:
        table: The table that has it.
        field: The number of the field with the type. The field with the value is the next one.

    Raises:
        ValueError: It has no value.
    """
    kind, offset = table.Offset(slot(field)), table.Offset(slot(field + 1))
    if not kind or not offset:
        raise ValueError("a value is missing")
    value = Table(table.Bytes, 0)
    table.Union(value, offset)
    return int(table.Bytes[table.Pos + kind]), value
