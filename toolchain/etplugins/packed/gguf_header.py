"""Checks the header of a GGUF file, because the `gguf` package reads as much as the sizes in it say.

The format is that of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md: the magic number, a version, the
numbers of tensors and of values, the values, and for each tensor its name, sizes, type and place. All numbers are
little endian.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

_VERSIONS = (2, 3)
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of the types of values, in bytes
_STRING, _LIST = 8, 9
_MOST_DIMENSIONS = 4
_MOST_ENTRIES = 1 << 16  # values and tensors: a model of today has a few thousand
_MOST_ITEMS = 1_500_000  # in all lists together, such as the words of a tokenizer: the package needs 1.5 kB for each
_ALIGNMENT = "general.alignment"


@dataclass
class _Reader:
    """Reads a header, but nothing after the end of the file."""

    file: BinaryIO
    end: int
    items: int = 0

    def skip(self, size: int) -> None:
        """Moves on by a number of bytes. Raises ValueError if the file ends before."""
        self.check_room(size)
        self.file.seek(size, os.SEEK_CUR)

    def check_room(self, size: int) -> None:
        """Raises ValueError if the rest of the file is shorter than this number of bytes."""
        if size > self.end - self.file.tell():
            raise ValueError(f"it ends before {size:,} bytes that its header announces")

    def read(self, size: int) -> bytes:
        """The next bytes. Raises ValueError if the file ends before."""
        self.check_room(size)
        return self.file.read(size)

    def number(self, size: int) -> int:
        """The next number of 4 or 8 bytes."""
        return int.from_bytes(self.read(size), "little")

    def text(self) -> bytes:
        """The next text."""
        return self.read(self.number(8))

    def value(self, kind: int) -> None:
        """Skips a value of a type."""
        if kind == _STRING:
            self.skip(self.number(8))
        elif kind in _SIZES:
            self.skip(_SIZES[kind])
        else:
            raise ValueError(f"a value has the unknown type {kind}")

    def values(self) -> None:
        """Skips a list."""
        kind, count = self.number(4), self.number(8)
        self.check_room(_SIZES.get(kind, 8) * count)
        self.items += count
        if self.items > _MOST_ITEMS:
            raise ValueError(f"its lists have {self.items:,} items or more, and at most {_MOST_ITEMS:,} are read")
        if kind in _SIZES:
            self.skip(_SIZES[kind] * count)
            return
        for _ in range(count):  # a text takes at least eight bytes, so the end of the file ends this loop
            self.value(kind)


def check(file: BinaryIO, size: int, blocks: Mapping[int, tuple[int, int]]) -> None:
    """Checks that a file holds what its header announces.

    Args:
        file: The file, at its beginning.
        size: Its size in bytes.
        blocks: For each type of tensors, the number of elements in a block, and the size of a block in bytes.

    Raises:
        ValueError: The file is too short, or its header is not that of a GGUF file.
    """
    reader = _Reader(file, size)
    if reader.number(4) != int.from_bytes(b"GGUF", "little"):
        raise ValueError("it is not a GGUF file")
    version = reader.number(4)
    if version not in _VERSIONS:
        raise ValueError(f"it has the version {version}, or is big endian; known: {_VERSIONS}")
    tensors, values = reader.number(8), reader.number(8)
    reader.check_room(24 * tensors + 13 * values)
    if max(tensors, values) > _MOST_ENTRIES:
        raise ValueError(f"it has {tensors:,} tensors and {values:,} values, and at most {_MOST_ENTRIES:,} are read")
    alignment = 32
    for _ in range(values):
        name, kind = reader.text(), reader.number(4)
        if name == _ALIGNMENT.encode() and kind == 4:
            alignment = reader.number(4)
        elif kind == _LIST:
            reader.values()
        else:
            reader.value(kind)
    if alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"its `{_ALIGNMENT}` is {alignment}, which is not a power of two")
    ends = [_tensor(reader, blocks) for _ in range(tensors)]
    start = -(-file.tell() // alignment) * alignment
    if ends and start + max(ends) > size:
        raise ValueError(f"it has {size:,} bytes, and its tensors need {start + max(ends):,}")


def _tensor(reader: _Reader, blocks: Mapping[int, tuple[int, int]]) -> int:
    """Reads the description of a tensor. Returns where the tensor ends, counted from the end of the header."""
    name = reader.text().decode(errors="replace")
    dimensions = reader.number(4)
    if dimensions > _MOST_DIMENSIONS:
        raise ValueError(f"`{name}` has {dimensions} dimensions")
    elements = math.prod(reader.number(8) for _ in range(dimensions))
    kind, place = reader.number(4), reader.number(8)
    if kind not in blocks:
        raise ValueError(f"`{name}` has the unknown type {kind}")
    of_block, size = blocks[kind]
    if elements % of_block:
        raise ValueError(f"`{name}` has {elements} elements, which is not a multiple of {of_block}")
    return place + elements // of_block * size
