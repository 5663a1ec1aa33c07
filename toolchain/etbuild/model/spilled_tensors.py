"""Tensors that take no memory until something reads them: their content is in files without names, or is all zeros."""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path
from weakref import WeakValueDictionary

import torch

from etbuild.errors import BuildError
from etbuild.model.stored_tensors import SMALL, mapped, read_part
from etbuild.model.tensor_bytes import flat_bytes

_PART = 1 << 24  # bytes of a file that are read back at once
_ENTRY = 8  # bytes for each page in /proc/self/pagemap

_spilled: WeakValueDictionary[int, mmap.mmap] = WeakValueDictionary()
"""The mappings that `spilled` made, by the address of their first byte. Each lives as long as its tensor."""
_unused: WeakValueDictionary[int, mmap.mmap] = WeakValueDictionary()
"""The mappings that `unused` made."""


def unused(shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """Zeros that take no memory until something writes to them. PyTorch's own zeros take memory."""
    if not shape.numel():
        return torch.empty(shape, dtype=dtype)  # a mapping cannot be empty
    mapping = mmap.mmap(-1, shape.numel() * dtype.itemsize, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    tensor = torch.frombuffer(mapping, dtype=dtype).view(shape)
    _unused[tensor.data_ptr()] = mapping
    return tensor


def spilled(tensor: torch.Tensor, directory: Path | None) -> torch.Tensor:
    """The same tensor with its content in a file without a name, so that it takes no memory until something reads it.

    A write to it takes memory of this process, and does not reach the file or forked processes.

    Args:
        tensor: The tensor.
        directory: Where the file is; None: the tensor stays in memory. It also stays there if it is small or `unused`,
            or if there is no room.

    Raises:
        BuildError: The file has other content than was written.
    """
    address = tensor.data_ptr()
    if directory is None or tensor.nbytes < SMALL or address in _spilled or address in _unused:
        return tensor
    content = flat_bytes(tensor)
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(content.numpy().data)
            file.flush()
            os.fsync(file.fileno())  # otherwise data could be lost later without an error, if the disk is full
            same = all(
                torch.equal(read_part(file, index * _PART, part.nbytes), part)
                for index, part in enumerate(content.split(_PART))
            )
            found, mapping = mapped(file, 0, tensor.nbytes)
    except OSError:  # the disk is full, or its file system cannot map files
        return tensor
    if not same:
        hint = "does a thread of the model change it, or is the disk faulty?"
        raise BuildError.of("a tensor has other content in a file than was written", hint)
    _spilled[found.data_ptr()] = mapping
    return found.view(tensor.dtype).view(tensor.shape)


def release(tensor: torch.Tensor) -> None:
    """Gives back the memory with the content of a spilled tensor. The content is read again when it is needed.

    If something has written to the tensor, it keeps its memory.
    """
    found = _spilled.get(tensor.data_ptr())
    if found is not None and not _has_own_pages(tensor.data_ptr(), len(found)):
        found.madvise(mmap.MADV_DONTNEED)


def _has_own_pages(address: int, size: int) -> bool:
    """Whether something has written to a private mapping of a file, so that it has pages that are not the file's. True
    if the system does not tell. PyTorch's counter of versions is not enough: `.data` of a parameter has its own.

    Args:
        address: The mapping's address, at the beginning of a page.
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
