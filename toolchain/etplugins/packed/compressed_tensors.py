"""compressed-tensors: integers, 8-bit floats and 4-bit floats, which the dtypes of the stored tensors tell apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from etplugins.packed import floats
from etplugins.packed.integers import Integers, by_row, centered, none_if_zeros, order, unpacked
from etplugins.packed.layout import Layout, Parts

_ACTIVATION_ENDS = (".input_scale", ".input_zero_point", ".input_global_scale")


def layouts(config: Mapping[str, Any]) -> list[Layout]:
    """The layouts of compressed-tensors."""
    groups = config.get("config_groups")
    sections = [config, *(groups.values() if isinstance(groups, Mapping) else ())]
    optional = (".weight_zero_point", ".weight_g_idx", ".weight_shape", ".weight_global_scale", *_ACTIVATION_ENDS)
    weights = [section.get("weights") for section in sections if isinstance(section, Mapping)]
    blocks = [entry.get("block_structure") for entry in weights if isinstance(entry, Mapping)]
    block = next((block for block in blocks if isinstance(block, list) and len(block) == 2), ())
    return [
        Layout((".weight_packed", ".weight_scale"), _shape_of_packed, _unpacked_weight, optional),
        Layout((".weight_scale", ".weight"), _shape_of_plain, partial(_plain_weight, block=block), optional),
    ]


def _shape_of_packed(parts: Parts) -> list[int]:
    if ".weight_shape" in parts:
        return [int(size) for size in parts[".weight_shape"]]
    rows, columns = parts.form(".weight_packed")[1]  # a byte has two numbers
    return [rows, columns * 2]


def _unpacked_weight(parts: Parts) -> Integers | torch.Tensor:
    if ".weight_shape" not in parts:
        return floats.of_four_bits(parts[".weight_packed"], parts[".weight_scale"], parts.get(".weight_global_scale"))
    words, (rows, columns) = parts[".weight_packed"], _shape_of_packed(parts)
    bits = words.shape[1] * 32 // columns
    scales = by_row(parts[".weight_scale"].float(), rows)
    zeros = None
    if ".weight_zero_point" in parts:
        zeros = unpacked(parts[".weight_zero_point"].mT, bits, rows).mT
        zeros = none_if_zeros(centered(zeros, bits).contiguous())
    return _integers(centered(unpacked(words, bits, columns), bits), scales, zeros, bits, parts)


def _shape_of_plain(parts: Parts) -> list[int]:
    return parts.form(".weight")[1]


def _plain_weight(parts: Parts, block: Sequence[int]) -> Integers | torch.Tensor:
    weight, scales = parts[".weight"], parts[".weight_scale"]
    if weight.dtype != torch.int8:
        return floats.scaled(weight, floats.of_exponents(scales) if scales.dtype == torch.uint8 else scales, block)
    zeros = by_row(parts[".weight_zero_point"].to(torch.int8), len(weight)) if ".weight_zero_point" in parts else None
    zeros = None if zeros is None else none_if_zeros(zeros)
    return _integers(weight, by_row(scales.float(), len(weight)), zeros, 8, parts)


def _integers(
    values: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, bits: int, parts: Parts
) -> Integers:
    return Integers(values, scales, zeros, bits, order(parts.get(".weight_g_idx"), scales.shape[1]))
