"""Weights of small floats with scales: 8 bits with a scale for the tensor, each row or each block, and 4 bits in
groups. XNNPACK has no layers for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from etplugins.packed.layout import Layout, Parts

_FOUR_BITS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The numbers that the bits of E2M1 stand for."""
_BLOCKS = "weight_block_size"


def fp8(config: Mapping[str, Any]) -> list[Layout]:
    """The layouts of `fp8` and `fbgemm_fp8`: floats of 8 bits, with a scale for the tensor, each row or each block."""
    block = config.get(_BLOCKS) or ()

    def read(parts: Parts) -> torch.Tensor:
        scale = next(parts[end] for end in (".weight_scale_inv", ".weight_scale") if end in parts)
        return scaled(parts[".weight"], scale, block)

    def shape(parts: Parts) -> list[int]:
        return parts.form(".weight")[1]

    ends = (".weight_scale_inv", ".weight_scale")
    return [
        Layout((end, ".weight"), shape, read, (".input_scale", ".input_scale_ub", ".activation_scale")) for end in ends
    ]


def mxfp4(config: Mapping[str, Any]) -> list[Layout]:
    """The layout of GPT-OSS: the experts of a layer in one tensor, with rows and columns swapped."""

    def shape(parts: Parts) -> list[int]:
        experts, rows, groups, size = parts.form("_blocks")[1]
        return [experts, groups * size * 2, rows]

    def read(parts: Parts) -> torch.Tensor:
        return of_four_bits(parts["_blocks"].flatten(2), parts["_scales"]).transpose(1, 2).contiguous()

    return [Layout(("_blocks", "_scales"), shape, read, weight="")]


def modelopt(config: Mapping[str, Any]) -> list[Layout]:
    """The layouts of NVIDIA's ModelOpt: NVFP4, and floats of 8 bits."""

    def shape(parts: Parts) -> list[int]:
        rows, columns = parts.form(".weight")[1]
        return [rows, columns * 2 if ".weight_scale_2" in parts else columns]

    def read(parts: Parts) -> torch.Tensor:
        if ".weight_scale_2" not in parts:
            return scaled(parts[".weight"], parts[".weight_scale"])
        return of_four_bits(parts[".weight"], parts[".weight_scale"], 1 / parts[".weight_scale_2"].float())

    optional = (".weight_scale_2", ".input_scale")
    return [Layout((".weight_scale", ".weight"), shape, read, optional)]


def scaled(weight: torch.Tensor, scale: torch.Tensor, block: Any = ()) -> torch.Tensor:
    """Small floats times their scales, in float32.

    Args:
        weight: The floats `[rows, columns]`.
        scale: One number for the tensor, for each row, for each group of neighbours in a row, or for each block.
        block: The rows and columns of a block; empty without blocks.
    """
    weight, scale = weight.float(), scale.float()
    if scale.numel() == 1:
        return weight * scale.reshape(())
    scale = scale[:, None] if scale.dim() == 1 else scale
    if not block or len(scale) == len(weight):  # a scale for each group of neighbours in a row
        return (weight.view(*scale.shape, -1) * scale[..., None]).view(weight.shape)
    height, width = (min(int(limit), size) for limit, size in zip(block, weight.shape, strict=True))
    if [math.ceil(weight.shape[0] / height), math.ceil(weight.shape[1] / width)] != list(scale.shape):
        raise ValueError(f"blocks of {height} x {width} of {list(weight.shape)} have no scales {list(scale.shape)}")
    for row in range(len(scale)):  # all rows at once would take the memory of another weight
        rows = weight[row * height : (row + 1) * height]
        rows *= scale[row].repeat_interleave(width)[: weight.shape[1]]
    return weight


def of_exponents(numbers: torch.Tensor) -> torch.Tensor:
    """The powers of two that the bytes of E8M0 stand for."""
    return numbers.view(torch.float8_e8m0fnu).float()


def of_four_bits(packed: torch.Tensor, scale: torch.Tensor, divisor: torch.Tensor | None = None) -> torch.Tensor:
    """Floats of 4 bits, two in a byte, times their scales, in float32: MXFP4 and NVFP4.

    Args:
        packed: uint8 `[..., bytes]`, the first of two numbers in the lowest bits.
        scale: `[..., groups]`: floats of 8 bits, or bytes that stand for powers of two.
        divisor: The divisor of all scales; None for 1.
    """
    numbers = torch.tensor(_FOUR_BITS)
    pairs = torch.stack([numbers[(packed & 15).int()], numbers[(packed >> 4).int()]], -1)
    scales = of_exponents(scale) if scale.dtype in (torch.uint8, torch.float8_e8m0fnu) else scale.float()
    if divisor is not None:
        scales = scales / divisor.float()
    grouped = pairs.reshape(*scales.shape, -1)
    return (grouped * scales[..., None]).reshape(*packed.shape[:-1], -1)
