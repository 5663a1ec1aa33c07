"""compressed-tensors: integers, 8-bit floats and 4-bit floats. The dtypes of the stored tensors say which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from etbuild.model.packed import floats
from etbuild.model.packed.integers import Integers, by_row, centered, none_if_zeros, order, unpacked
from etbuild.model.packed.layout import Layout, Parts

_OF_ACTIVATIONS = (".input_scale", ".input_zero_point", ".input_global_scale")


def layouts(config: Mapping[str, Any]) -> list[Layout]:
    """The layouts of compressed-tensors."""
    groups = config.get("config_groups")
    found = [config, *(groups.values() if isinstance(groups, Mapping) else ())]
    optional = (".weight_zero_point", ".weight_g_idx", ".weight_shape", ".weight_global_scale", *_OF_ACTIVATIONS)
    weights = [each.get("weights") for each in found if isinstance(each, Mapping)]
    blocks = [each.get("block_structure") for each in weights if isinstance(each, Mapping)]
    block = next((each for each in blocks if isinstance(each, list) and len(each) == 2), ())
    return [
        Layout((".weight_packed", ".weight_scale"), _shape_of_packed, _packed, optional),
        Layout((".weight_scale", ".weight"), _shape_of_plain, partial(_plain, block=block), optional),
    ]


def _shape_of_packed(parts: Parts) -> list[int]:
    if ".weight_shape" in parts:
        return [int(size) for size in parts[".weight_shape"]]
    rows, columns = parts.form(".weight_packed")[1]  # two numbers in a byte
    return [rows, columns * 2]


def _packed(parts: Parts) -> Integers | torch.Tensor:
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


def _plain(parts: Parts, block: Sequence[int]) -> Integers | torch.Tensor:
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
