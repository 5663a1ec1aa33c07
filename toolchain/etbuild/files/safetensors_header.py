"""Reads the header of a safetensors file: eight bytes with its length (little endian), then JSON."""

from __future__ import annotations

from typing import Any, BinaryIO

from etbuild.files import json_file

LENGTH = 8
_MOST_BYTES = 100_000_000  # safetensors reads no larger header


def read(file: BinaryIO) -> tuple[dict[str, Any], int]:
    """The entries of the tensors by name, and where the tensors' bytes begin in the file.

    safetensors itself accepts a header that names a tensor twice, and returns the last one.

    Args:
        file: The file, at its beginning.

    Raises:
        ValueError: The header is too long or not JSON, or it has a key twice.
    """
    length = int.from_bytes(file.read(LENGTH), "little")
    if length > _MOST_BYTES:
        raise ValueError(f"its header has {length} bytes, and at most {_MOST_BYTES} are read")
    header = json_file.parse(file.read(length))
    header.pop("__metadata__", None)
    return header, LENGTH + length
