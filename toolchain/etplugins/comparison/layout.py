"""Compares the order of the numbers of outputs in memory: an application reads the numbers, and ignores strides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


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


def _order(value: torch.Tensor) -> list[int]:
    """The dimensions with several elements, from the largest stride to the smallest one."""
    several = [dim for dim, size in enumerate(value.shape) if size > 1]
    return sorted(several, key=lambda dim: (-value.stride(dim), dim))
