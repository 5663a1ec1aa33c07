"""Computes the digest of each tensor in a weights file, to show which tensors changed between two builds."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypedDict

from etbuild import json_schema
from etbuild.errors import InputError
from etbuild.files import json_file, regular_files
from etbuild.files.weights_suffixes import INDEX_SUFFIXES

_BLOCK = 1 << 20
_HEADER_LIMIT = 100_000_000  # bytes: the limit of safetensors itself


class _Entry(TypedDict):
    """A tensor in the header of a safetensors file, which fits its schema."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def tensors_of_files(files: Mapping[str, Path]) -> dict[str, dict[str, str]]:
    """The digests of the tensors in each file of weights. Indexes, which hold no tensors, are left out.

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
        return _of_torch_file(name, file)
    try:
        with regular_files.opened(file) as opened:
            return _of_safetensors(opened)
    except (OSError, ValueError) as error:
        raise InputError.at(("model", "weights"), f"cannot read `{name}`: {error}") from error


def _of_safetensors(file: BinaryIO) -> dict[str, str]:
    """The digests of the tensors in a safetensors file. Raises ValueError if the file has another format.

    The format is: eight bytes with the length of the header (little endian), a JSON header, and the tensors' bytes.
    """
    length = int.from_bytes(file.read(8), "little")
    if length > _HEADER_LIMIT:
        raise ValueError("its header is too long")
    header = json_file.parse(file.read(length))
    wrong = json_schema.problems("safetensors", header, most=1)
    if wrong:
        raise ValueError(wrong[0].on_one_line())
    header.pop("__metadata__", None)
    _check_places(header, file.seek(0, os.SEEK_END) - 8 - length)
    return {name: _digest(file, 8 + length, entry) for name, entry in sorted(header.items())}


def _check_places(header: dict[str, _Entry], size: int) -> None:
    """Raises ValueError if the tensors do not fill the bytes after the header one after the other, as safetensors
    requires: there is a gap, an overlap or a rest."""
    end = 0
    for begin, after in sorted(entry["data_offsets"] for entry in header.values()):
        if begin != end or after < begin:
            raise ValueError("its tensors do not follow each other")
        end = after
    if end != size:
        raise ValueError("it ends too early" if end > size else "it goes on after its tensors")


def _digest(file: BinaryIO, start: int, entry: _Entry) -> str:
    begin, end = entry["data_offsets"]
    state = _state(entry["dtype"], entry["shape"])
    file.seek(start + begin)
    rest = end - begin
    while rest > 0 and (block := file.read(min(_BLOCK, rest))):
        state.update(block)
        rest -= len(block)
    return str(state.hexdigest())


def _of_torch_file(name: str, file: Path) -> dict[str, str]:
    from safetensors.torch import _TYPES

    from etbuild.model.tensor_bytes import flat_bytes
    from etbuild.model.tensor_files import all_tensors

    names = {dtype: code for code, dtype in _TYPES.items()}
    found = {}
    for key, tensor in sorted(all_tensors(name, file, ("model", "weights")).items()):
        state = _state(names.get(tensor.dtype, str(tensor.dtype)), list(tensor.shape))
        state.update(memoryview(flat_bytes(tensor).numpy()))
        found[key] = state.hexdigest()
    return found


def _state(dtype: str, shape: list[int]) -> Any:
    """A sha256 object that was updated with the dtype (safetensors' name of it) and the shape."""
    return hashlib.sha256(f"{dtype}{shape}".encode())
