"""Reads ETDump files: the events that ExecuTorch's runtime has recorded. A file may come from any device.

ExecuTorch itself lets `flatc` convert a whole file to JSON, which may fill a disk. Its Inspector keeps one event for
each instruction of a call, and so only one step of a loop. This reader keeps all events.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flatbuffers.number_types import Int32Flags, Uint64Flags
from flatbuffers.table import Table

from etbuild.errors import InputError
from etbuild.files import flatbuffer, regular_files

MAX_BYTES = 64 << 20
_IDENTIFIER = b"ED00"
_WRAPS = 1 << 32  # clocks with 32 bits start again at 0


@dataclass(frozen=True)
class Event:
    """Something that took time.

    Attributes:
        name: What the runtime calls it, such as `OPERATOR_CALL`, `DELEGATE_CALL` or `native_call_add.out`.
        instruction: The number of the instruction; None if it belongs to none.
        part: For an event inside a delegate, the name or number that the backend gave it; otherwise None.
        ticks: How long it took, in units of the device's clock.
    """

    name: str
    instruction: int | None
    part: str | None
    ticks: int


@dataclass(frozen=True)
class Block:
    """The events of loading, or of one call.

    Attributes:
        name: What the runtime calls it, such as `Execute`.
        events: Its events, in the order of their ends.
    """

    name: str
    events: list[Event]


def read(path: Path) -> list[Block]:
    """Reads a file.

    Raises:
        InputError: The file cannot be read, or it is no ETDump, or it is damaged.
    """
    try:
        data = regular_files.read(path, MAX_BYTES)
    except OSError as error:
        hint = "record fewer calls" if error.errno == errno.EFBIG else None
        raise InputError.of(f"{path}: cannot read the file: {error.strerror}", hint) from None
    if data[8:12] == _IDENTIFIER:  # the runtime writes the size before it
        data = data[4:]
    if data[4:8] != _IDENTIFIER:
        raise InputError.of(f"{path}: not an ETDump", "an ETDump has the identifier ED00 near its beginning")
    with flatbuffer.read_safely(path), flatbuffer.read_once(len(data)):
        return list(_blocks(data))


# The numbers of fields are those of `etdump_schema_flatcc.fbs` in ExecuTorch 1.5.


def _blocks(data: bytes) -> Iterator[Block]:
    for run in flatbuffer.tables(flatbuffer.root(data), 1):
        profiled = (flatbuffer.inner(event, 0) for event in flatbuffer.tables(run, 3))
        yield Block(flatbuffer.text(run, 0), [_event(event) for event in profiled if event is not None])


def _event(event: Table) -> Event:
    instruction = flatbuffer.number(event, 2, Int32Flags, -1)
    number = flatbuffer.number(event, 3, Int32Flags, -1)
    part = str(number) if number != -1 else flatbuffer.text(event, 4) or None
    start, end = flatbuffer.number(event, 6, Uint64Flags), flatbuffer.number(event, 7, Uint64Flags)
    return Event(flatbuffer.text(event, 0), None if instruction < 0 else instruction, part, _between(start, end))


def _between(start: int, end: int) -> int:
    """The time from a start to an end. Raises ValueError if it is negative, unless a clock of 32 bits has wrapped."""
    if start <= end:
        return end - start
    if start >= _WRAPS:
        raise ValueError("an event ends before it begins")
    return end + _WRAPS - start
