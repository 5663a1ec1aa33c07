"""Compares the order that the numbers of outputs have in memory: an application reads numbers, and no strides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def wrong(actual: Sequence[Any], expected: Sequence[Any]) -> list[str]:
    """The outputs whose memory has neither the order of PyTorch nor that of the dimensions, for messages."""
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
