"""The order of numbers in memory: that of inputs, and compares that of outputs.

An application reads the numbers of outputs, and ignores strides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.export import ExportedProgram

from etbuild.export.example_values import inputs_of_graph
from etbuild.model.tensor_bytes import dtype_name

_IMAGE_DIMENSIONS = 4


def wrong(actual: Sequence[Any], expected: Sequence[Any]) -> list[str]:
    """Messages about outputs whose order in memory is neither PyTorch's nor that of the dimensions."""
    found = []
    for index, (one, other) in enumerate(zip(actual, expected, strict=True)):
        if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor) or not one.numel():
            continue
        order = _order(one)
        if order != sorted(order) and order != _order(other):
            name = f"output {index}" if len(expected) > 1 else "the output"
            found.append(f"{name}: memory has its dimensions in the order {order} instead of {_order(other)}")
    return found


def of_inputs(values: Sequence[Any], program: ExportedProgram) -> list[Any]:
    """Inputs of a method in the format channels_last where the exported method has it. A file does not keep it."""
    return [
        value.contiguous(memory_format=torch.channels_last) if is_channels_last(given) else value
        for value, given in zip(values, inputs_of_graph(program), strict=True)
    ]


def misfit(values: Sequence[Any], program: ExportedProgram) -> str | None:
    """Why an exported method does not take inputs, in its order; None if it takes them."""
    for index, (value, given) in enumerate(zip(values, inputs_of_graph(program), strict=True)):
        if not isinstance(given, torch.Tensor) or not isinstance(value, torch.Tensor):
            if type(value) is not type(given) or value != given:
                return f"input {index} is {value!r}, not {given!r}"
            continue
        taken = [size if isinstance(size, int) else "any" for size in given.shape]
        sizes = zip(taken, value.shape, strict=False)
        fits = value.dim() == given.dim() and all(one in (other, "any") for one, other in sizes)
        if value.dtype != given.dtype or not fits:
            own, other = dtype_name(value.dtype), dtype_name(given.dtype)
            return f"input {index} is {own} {[*value.shape]}, not {other} {taken}"
    return None


def is_channels_last(value: Any) -> bool:
    """Whether a value is a tensor in this format and not row by row. Looks only at numbers: a comparison of symbols
    would bind them."""
    if not isinstance(value, torch.Tensor) or value.dim() != _IMAGE_DIMENSIONS:
        return False
    _, channel, _, last = (step if isinstance(step, int) else None for step in value.stride())
    return channel == 1 and last != 1


def _order(value: torch.Tensor) -> list[int]:
    """The dimensions with several elements, from the largest stride to the smallest one."""
    several = [dim for dim, size in enumerate(value.shape) if size > 1]
    return sorted(several, key=lambda dim: (-value.stride(dim), dim))
