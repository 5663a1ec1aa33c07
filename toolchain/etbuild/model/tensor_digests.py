"""Digests of the tensors in a weights file. They show which tensors changed between two builds."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from safetensors import safe_open

from etbuild.errors import InputError
from etbuild.files import regular_files, safetensors_header
from etbuild.files.copying import at_once
from etbuild.files.weights_suffixes import INDEX_SUFFIXES
from etbuild.foreign_errors import wrap_library_errors

_BLOCK = 1 << 20


def tensors_of_files(files: Mapping[str, Path]) -> dict[str, dict[str, str]]:
    """The digests of the tensors in each weights file, by the names of file and tensor. Leaves out indexes.

    Args:
        files: The files, by their names in the manifest.

    Raises:
        InputError: A file cannot be read.
    """
    return {name: tensor_digests(name, file) for name, file in files.items() if not name.endswith(INDEX_SUFFIXES)}


def tensor_digests(name: str, file: Path) -> dict[str, str]:
    """The sha256 over dtype, shape and bytes of each tensor, by its name. A safetensors file is read without torch.

    Args:
        name: The file's name in the manifest.
        file: The file.

    Raises:
        InputError: The file cannot be read.
    """
    if not name.endswith(".safetensors"):
        return _torch_file_digests(name, file)
    with (
        wrap_library_errors(InputError, ("model", "weights"), f"cannot read `{name}`"),
        regular_files.opened(file) as opened,
    ):
        return _safetensors_digests(file, opened)


def _safetensors_digests(file: Path, opened: BinaryIO) -> dict[str, str]:
    """The digests of the tensors in a safetensors file."""
    with safe_open(file, "numpy"):  # checks the header, and that the tensors fill the file without gaps
        pass
    header, start = safetensors_header.read(opened)
    work = {name: partial(_digest, opened, start, entry) for name, entry in sorted(header.items())}
    return dict(zip(work, at_once([*work.values()]), strict=True))


def _digest(file: BinaryIO, start: int, entry: dict[str, Any]) -> str:
    begin, end = entry["data_offsets"]
    state = _state(entry["dtype"], entry["shape"])
    place, end = start + begin, start + end
    while place < end and (block := os.pread(file.fileno(), min(_BLOCK, end - place), place)):
        state.update(block)
        place += len(block)
    return str(state.hexdigest())


def _torch_file_digests(name: str, file: Path) -> dict[str, str]:
    from safetensors.torch import _TYPES

    from etbuild.model.tensor_bytes import flat_bytes
    from etbuild.model.tensor_files import all_tensors

    names = {dtype: code for code, dtype in _TYPES.items()}
    digests = {}
    for key, tensor in sorted(all_tensors(name, file, ("model", "weights")).items()):
        state = _state(names.get(tensor.dtype, str(tensor.dtype)), list(tensor.shape))
        state.update(memoryview(flat_bytes(tensor).numpy()))
        digests[key] = state.hexdigest()
    return digests


def _state(dtype: str, shape: list[int]) -> Any:
    """A sha256 object that contains the dtype (safetensors' name of it) and the shape."""
    return hashlib.sha256(f"{dtype}{shape}".encode())
