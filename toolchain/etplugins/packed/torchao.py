"""torchao's own files: tensors of its classes for integers, each in a byte, and for floats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from etplugins.packed import floats
from etplugins.packed.integers import Integers, by_row, none_if_zeros
from etplugins.packed.layout import Layout, Parts

_FLOATS = (torch.float8_e4m3fn, torch.float8_e5m2)
_FOUR_BITS = range(-8, 8)


def layouts(config: Mapping[str, Any]) -> list[Layout]:
    """The layout of `Int8Tensor`, `IntxUnpackedToInt8Tensor` and `Float8Tensor`."""
    needed = ("._weight_qdata", "._weight_scale")
    return [Layout(needed, lambda parts: parts.form("._weight_qdata")[1], _read, ("._weight_zero_point",))]


def _read(parts: Parts) -> Integers | torch.Tensor:
    values, scales = parts["._weight_qdata"], parts["._weight_scale"].float()
    if values.dtype in _FLOATS:
        return floats.scaled(values, scales)
    if values.dtype != torch.int8 or values.dim() != 2:
        raise ValueError(f"{values.dtype} is not the dtype of a class that is read")
    scales = by_row(scales, len(values))
    zeros = parts.get("._weight_zero_point")
    if zeros is not None and zeros.is_floating_point():
        raise ValueError("its zero points are floats")
    low, high = (int(limit) for limit in values.aminmax())
    bits = 4 if low in _FOUR_BITS and high in _FOUR_BITS else 8
    return Integers(
        values, scales, None if zeros is None else none_if_zeros(zeros.to(torch.int8).view(scales.shape)), bits
    )
