"""Tensors whose content is in a file and not in memory, and files of tensors that are read one by one.

The content of a mapped file counts as memory of a process after it is read, until the mapping ends. So each tensor read
here has its own mapping, which ends with the tensor.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import safe_open
from safetensors.torch import _TYPES

from etbuild.files import safetensors_header

SMALL = 1 << 20  # bytes: for less, a file or a mapping costs more than it saves
CODES = {
    **_TYPES,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F4": torch.float4_e2m1fn_x2,  # two numbers per byte; the shape in the file counts numbers
}
"""The dtypes by their names in safetensors files."""


class LazyTensors(Mapping[str, torch.Tensor]):
    """Tensors by name. Each access reads a tensor."""

    _entries: Mapping[str, Any]  # the facts for reading a tensor, by its name

    def __contains__(self, name: object) -> bool:
        return name in self._entries  # the method of `Mapping` would read the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


class StoredTensors(LazyTensors):
    """The tensors of a safetensors file by name. Each access reads a tensor again, and nothing here keeps it.

    The file stays open, because another file may get its name.

    Args:
        file: The file. Its content must not change.

    Raises:
        Exception: safetensors or JSON refuses the file.
    """

    def __init__(self, file: Path) -> None:
        with safe_open(file, "pt"):  # checks the header, and that it describes the whole file
            pass
        opened = file.open("rb")
        weakref.finalize(self, opened.close)
        self._opened, (self._entries, self._start) = opened, safetensors_header.read(opened)

    def __getitem__(self, name: str) -> torch.Tensor:
        entry = self._entries[name]
        dtype, shape, (begin, end) = CODES[entry["dtype"]], entry["shape"], entry["data_offsets"]
        if dtype == torch.float4_e2m1fn_x2:
            shape = [*shape[:-1], shape[-1] // 2]
        if begin == end:
            return torch.empty(shape, dtype=dtype)
        content = read_part(self._opened, self._start + begin, end - begin)
        return content.view(dtype).view(shape)


def read_part(file: BinaryIO, offset: int, size: int) -> torch.Tensor:
    """A part of a file as a tensor of bytes, uint8[size]. Writes to it do not reach the file."""
    if size >= SMALL:
        return mapped(file, offset, size)[0]
    # Forked processes share the position in the file, so it is not used.
    return torch.frombuffer(bytearray(os.pread(file.fileno(), size, offset)), dtype=torch.uint8)


def mapped(file: BinaryIO, offset: int, size: int) -> tuple[torch.Tensor, mmap.mmap]:
    """A part of a file as a tensor of bytes, uint8[size], and its mapping."""
    start = offset - offset % mmap.ALLOCATIONGRANULARITY
    access = mmap.PROT_READ | mmap.PROT_WRITE
    mapping = mmap.mmap(file.fileno(), offset - start + size, mmap.MAP_PRIVATE, access, offset=start)
    return torch.frombuffer(mapping, dtype=torch.uint8, count=size, offset=offset - start), mapping
