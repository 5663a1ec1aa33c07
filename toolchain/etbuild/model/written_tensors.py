"""Writes files of tensors, one tensor after the other."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import BinaryIO

import torch

from etbuild.files.safetensors_header import LENGTH
from etbuild.model.spilled_tensors import release
from etbuild.model.stored_tensors import CODES
from etbuild.model.tensor_bytes import flat_bytes

_NAMES = {dtype: code for code, dtype in CODES.items()}
Form = tuple[torch.dtype, list[int]]
"""A dtype and a shape."""


def write(file: BinaryIO, tensors: Mapping[str, torch.Tensor]) -> None:
    """Writes a safetensors file. A spilled tensor is in memory only while it is written.

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
    if absent:  # the file has zeros or nothing in its place
        raise ValueError(f"`{min(absent)}` was not made")


def _layout(forms: Mapping[str, Form]) -> tuple[bytes, dict[str, int]]:
    """The beginning of a safetensors file, and the place of each tensor, in the order of the places."""
    entries: dict[str, object] = {}
    begins: dict[str, int] = {}
    end = 0
    for name in sorted(forms, key=lambda name: (-forms[name][0].itemsize, name)):  # aligns each
        dtype, shape = forms[name]
        begins[name], end = end, end + torch.Size(shape).numel() * dtype.itemsize
        counted = [*shape[:-1], shape[-1] * 2] if dtype == torch.float4_e2m1fn_x2 else shape
        entries[name] = {"dtype": _NAMES[dtype], "shape": counted, "data_offsets": [begins[name], end]}
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % LENGTH)
    start = len(header).to_bytes(LENGTH, "little") + header
    return start, {name: len(start) + begin for name, begin in begins.items()}
