"""Tensors whose content is in a file and not in memory, and files of tensors that are written and read one by one.

The content of a mapped file counts as memory of a process from when it is read until its mapping ends. So each tensor
that is read here has a mapping of its own, which ends with the tensor.
"""

from __future__ import annotations

import json
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO
from weakref import WeakValueDictionary

import torch
from safetensors import safe_open
from safetensors.torch import _TYPES

from etbuild.errors import BuildError
from etbuild.files import safetensors_header
from etbuild.model.tensor_bytes import flat_bytes

_LENGTH = 8  # bytes before the header of a safetensors file: its length
_SMALL = 1 << 20  # bytes: a file or a mapping for less would cost more than it saves
_PART = 1 << 24  # bytes of a file that are read back at once
_ENTRY = 8  # bytes of a page in /proc/self/pagemap
_CODES = {
    **_TYPES,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F4": torch.float4_e2m1fn_x2,  # two numbers in a byte, which its shape in the file counts one by one
}
"""The dtypes by their names in safetensors files."""
_NAMES = {dtype: code for code, dtype in _CODES.items()}
Form = tuple[torch.dtype, list[int]]
"""A dtype and a shape."""


class LazyTensors(Mapping[str, torch.Tensor]):
    """Tensors by name, which are read when they are asked for."""

    _entries: Mapping[str, Any]  # what is known about each

    def __contains__(self, name: object) -> bool:
        return name in self._entries  # that of a mapping would read the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


class StoredTensors(LazyTensors):
    """The tensors of a safetensors file by name. Each is read when it is asked for, and nothing here keeps it.

    The file stays open: another one may get its name.

    Args:
        file: The file. Its content must not change.

    Raises:
        Exception: safetensors or JSON refuses the file.
    """

    def __init__(self, file: Path) -> None:
        with safe_open(file, "pt"):  # it checks the header, and that it describes all of the file
            pass
        opened = file.open("rb")
        weakref.finalize(self, opened.close)
        self._opened, (self._entries, self._start) = opened, safetensors_header.read(opened)

    def __getitem__(self, name: str) -> torch.Tensor:
        entry = self._entries[name]
        dtype, shape, (begin, end) = _CODES[entry["dtype"]], entry["shape"], entry["data_offsets"]
        if dtype == torch.float4_e2m1fn_x2:
            shape = [*shape[:-1], shape[-1] // 2]
        if begin == end:
            return torch.empty(shape, dtype=dtype)
        content = _read(self._opened, self._start + begin, end - begin)
        return content.view(dtype).view(shape)


def write(file: BinaryIO, tensors: Mapping[str, torch.Tensor]) -> None:
    """Writes a safetensors file. A tensor that was spilled is in memory only while it is written.

    Args:
        file: The open file.
        tensors: The tensors by name.

    Raises:
        KeyError: safetensors files cannot hold a dtype.
    """
    header, offsets = _layout({name: (each.dtype, [*each.shape]) for name, each in tensors.items()})
    file.write(header)
    for name in offsets:
        file.write(flat_bytes(tensors[name]).numpy().data)
        release(tensors[name])


def write_as_made(file: BinaryIO, forms: Mapping[str, Form], tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Writes a safetensors file with tensors that are made one by one.

    Args:
        file: The open file, which can seek.
        forms: The form of each tensor by name.
        tensors: All of them with their names, in any order.

    Raises:
        ValueError: A tensor has another form, or was not made.
    """
    header, offsets = _layout(forms)
    file.write(header)
    absent = {*forms}
    for name, tensor in tensors:
        if (tensor.dtype, [*tensor.shape]) != forms[name]:
            raise ValueError(f"`{name}` is {tensor.dtype}{[*tensor.shape]}")
        file.seek(offsets[name])
        file.write(flat_bytes(tensor).numpy().data)
        absent.discard(name)
    if absent:  # its place in the file holds zeros, or is not there
        raise ValueError(f"`{min(absent)}` was not made")


def _layout(forms: Mapping[str, Form]) -> tuple[bytes, dict[str, int]]:
    """What a safetensors file begins with, and the place of each tensor, in the order of the places."""
    entries: dict[str, object] = {}
    begins: dict[str, int] = {}
    end = 0
    for name in sorted(forms, key=lambda name: (-forms[name][0].itemsize, name)):  # each begins at its alignment
        dtype, shape = forms[name]
        begins[name], end = end, end + torch.Size(shape).numel() * dtype.itemsize
        counted = [*shape[:-1], shape[-1] * 2] if dtype == torch.float4_e2m1fn_x2 else shape
        entries[name] = {"dtype": _NAMES[dtype], "shape": counted, "data_offsets": [begins[name], end]}
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % _LENGTH)
    start = len(header).to_bytes(_LENGTH, "little") + header
    return start, {name: len(start) + begin for name, begin in begins.items()}


_spilled: WeakValueDictionary[int, mmap.mmap] = WeakValueDictionary()
"""The mappings that `spilled` made, by the address of their first byte. Each lives as long as its tensor."""
_unused: WeakValueDictionary[int, mmap.mmap] = WeakValueDictionary()
"""Those that `unused` made."""


def unused(shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """Zeros that take no memory until something writes to them. Those of PyTorch do."""
    if not shape.numel():
        return torch.empty(shape, dtype=dtype)  # a mapping has at least one byte
    mapping = mmap.mmap(-1, shape.numel() * dtype.itemsize, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    tensor = torch.frombuffer(mapping, dtype=dtype).view(shape)
    _unused[tensor.data_ptr()] = mapping
    return tensor


def spilled(tensor: torch.Tensor, directory: Path | None) -> torch.Tensor:
    """The same tensor with its content in a file without a name, so that it takes no memory until something reads it.

    What is written to it takes memory of this process, and does not reach the file or processes that were forked.

    Args:
        tensor: The tensor.
        directory: Where the file is; None: the tensor stays in memory. It also does so if it is small or `unused`, or
            if there is no room.

    Raises:
        BuildError: The file has other content than was written.
    """
    address = tensor.data_ptr()
    if directory is None or tensor.nbytes < _SMALL or address in _spilled or address in _unused:
        return tensor
    content = flat_bytes(tensor)
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(content.numpy().data)
            file.flush()
            os.fsync(file.fileno())  # otherwise what the disk cannot take would be lost later, without an error
            same = all(
                torch.equal(_read(file, index * _PART, part.nbytes), part)
                for index, part in enumerate(content.split(_PART))
            )
            found, mapping = _mapped(file, 0, tensor.nbytes)
    except OSError:  # the disk is full, or its file system cannot map files
        return tensor
    if not same:
        hint = "does a thread of the model change it, or is the disk faulty?"
        raise BuildError.of("a tensor has other content in a file than was written", hint)
    _spilled[found.data_ptr()] = mapping
    return found.view(tensor.dtype).view(tensor.shape)


def release(tensor: torch.Tensor) -> None:
    """Gives back the memory in which the content of a spilled tensor was read. It is read again where it is needed.

    If something has written to the tensor, it keeps its memory.
    """
    found = _spilled.get(tensor.data_ptr())
    if found is not None and not _has_own_pages(tensor.data_ptr(), len(found)):
        found.madvise(mmap.MADV_DONTNEED)


def _has_own_pages(address: int, size: int) -> bool:
    """Whether a private mapping of a file has pages that are not the file's: something has written to them. True if the
    system does not tell. PyTorch's counter of versions is not enough: `.data` of a parameter has another one.

    Args:
        address: That of the mapping, where a page begins.
        size: Its size in bytes.
    """
    pages = -(-size // mmap.PAGESIZE)
    try:
        with Path("/proc/self/pagemap").open("rb", buffering=0) as file:
            read = os.pread(file.fileno(), _ENTRY * pages, address // mmap.PAGESIZE * _ENTRY)
    except OSError:
        return True
    if len(read) < _ENTRY * pages:
        return True
    # The three highest bits: whether a page is in memory, whether it is in the swap space, and whether it is a file's.
    kinds = torch.frombuffer(bytearray(read), dtype=torch.int64) >> 61 & 7
    return bool(((kinds > 1) & (kinds % 2 == 0)).any())


def _read(file: BinaryIO, offset: int, size: int) -> torch.Tensor:
    """A part of a file as a tensor of bytes, uint8[size]. What is written to it does not reach the file."""
    if size >= _SMALL:
        return _mapped(file, offset, size)[0]
    # Processes that were forked share the position in the file, so it is not used.
    return torch.frombuffer(bytearray(os.pread(file.fileno(), size, offset)), dtype=torch.uint8)


def _mapped(file: BinaryIO, offset: int, size: int) -> tuple[torch.Tensor, mmap.mmap]:
    """A part of a file as a tensor of bytes, uint8[size], and the mapping in which it is."""
    start = offset - offset % mmap.ALLOCATIONGRANULARITY
    access = mmap.PROT_READ | mmap.PROT_WRITE
    mapping = mmap.mmap(file.fileno(), offset - start + size, mmap.MAP_PRIVATE, access, offset=start)
    return torch.frombuffer(mapping, dtype=torch.uint8, count=size, offset=offset - start), mapping
