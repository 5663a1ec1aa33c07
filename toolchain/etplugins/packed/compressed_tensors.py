"""compressed-tensors: integers, 8-bit floats and 4-bit floats, which the dtypes of the stored tensors tell apart."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from etplugins.packed import floats
from etplugins.packed.integers import Integers, by_row, centered, none_if_zeros, order, unpacked
from etplugins.packed.layout import Layout, Parts

_DENSE_SINCE = (0, 18)
"""The first release of the library that leaves no gaps in words. Numbers of 3, 5, 6 and 7 bits had gaps before."""
_BITS = range(1, 9)
_ACTIVATION_ENDS = (".input_scale", ".input_zero_point", ".input_global_scale")


@dataclass(frozen=True)
class Words:
    """What a configuration says about numbers in words of 32 bits.

    Attributes:
        bits: The numbers of bits of a number that layers have.
        gaps: Whether words have gaps; None if the configuration does not say it.
    """

    bits: Collection[int]
    gaps: bool | None

    def of(self, words: int, count: int) -> tuple[int, bool]:
        """The bits of a number and whether there are gaps, for so many words of so many numbers.

        Raises:
            ValueError: No form fits, or several do.
        """
        forms = [(bits, gaps) for bits in sorted(self.bits) for gaps in _forms(bits, count)]
        fitting = [(bits, gaps) for bits, gaps in forms if words == _count_of_words(bits, count, gaps)]
        if len(fitting) > 1 and self.gaps is not None:
            fitting = [form for form in fitting if form[1] == self.gaps or len(_forms(form[0], count)) == 1]
        if len(fitting) != 1:
            fit = "fit more than one form" if fitting else "do not fit"
            bits = " or ".join(map(str, sorted(self.bits))) or "no `num_bits`"
            raise ValueError(f"{words} words {fit}: `quantization_config` says {bits} bits for {count} numbers")
        return fitting[0]


def layouts(config: Mapping[str, Any]) -> list[Layout]:
    """The layouts of compressed-tensors."""
    optional = (".weight_zero_point", ".weight_g_idx", ".weight_shape", ".weight_global_scale", *_ACTIVATION_ENDS)
    blocks = [entry.get("block_structure") for entry in _schemes(config)]
    block = next((block for block in blocks if isinstance(block, list) and len(block) == 2), ())
    return [
        Layout(
            (".weight_packed", ".weight_scale"),
            _shape_of_packed,
            partial(_unpacked_weight, words=words(config)),
            optional,
        ),
        Layout((".weight_scale", ".weight"), _shape_of_plain, partial(_plain_weight, block=block), optional),
    ]


def words(config: Mapping[str, Any]) -> Words:
    """What a configuration says about the words of `pack-quantized`."""
    bits = [entry.get("num_bits") for entry in _schemes(config)]
    return Words({each for each in bits if isinstance(each, int) and each in _BITS}, _has_gaps(config))


def _schemes(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The schemes of weights, for all layers and for groups of them."""
    groups = config.get("config_groups")
    sections = [config, *(groups.values() if isinstance(groups, Mapping) else ())]
    weights = [section.get("weights") for section in sections if isinstance(section, Mapping)]
    return [entry for entry in weights if isinstance(entry, Mapping)]


def _shape_of_packed(parts: Parts) -> list[int]:
    if ".weight_shape" in parts:
        return [int(size) for size in parts[".weight_shape"]]
    rows, columns = parts.form(".weight_packed")[1]  # a byte has two numbers
    return [rows, columns * 2]


def _has_gaps(config: Mapping[str, Any]) -> bool | None:
    """Whether the release of the library leaves gaps; None if the configuration does not name one."""
    found = re.match(r"(\d+)\.(\d+)", str(config.get("version")))
    return (int(found[1]), int(found[2])) < _DENSE_SINCE if found else None


def _forms(bits: int, count: int) -> tuple[bool, ...]:
    """The values of `gaps` that make a difference for so many numbers."""
    return (False, True) if 32 % bits and count > 32 // bits else (False,)


def _count_of_words(bits: int, count: int, gaps: bool) -> int:
    return math.ceil(count / (32 // bits)) if gaps else math.ceil(count * bits / 32)


def _unpacked_weight(parts: Parts, words: Words) -> Integers | torch.Tensor:
    if ".weight_shape" not in parts:
        return floats.of_four_bits(parts[".weight_packed"], parts[".weight_scale"], parts.get(".weight_global_scale"))
    packed, (rows, columns) = parts[".weight_packed"], _shape_of_packed(parts)
    bits, gaps = words.of(packed.shape[-1], columns)
    scales = by_row(parts[".weight_scale"].float(), rows)
    known = gaps if True in _forms(bits, columns) else words.gaps
    stored = parts.get(".weight_zero_point")
    zeros = None if stored is None else _zero_points(stored, rows, Words({bits}, known))
    return _integers(centered(unpacked(packed, bits, columns, gaps), bits), scales, zeros, bits, parts)


def _zero_points(stored: torch.Tensor, rows: int, words: Words) -> torch.Tensor | None:
    """Zero points, which are in words along the rows if each group or row has one."""
    if stored.dtype != torch.int32:
        return none_if_zeros(by_row(stored.to(torch.int8), rows))
    bits, gaps = words.of(len(stored), rows)
    return none_if_zeros(centered(unpacked(stored.mT, bits, rows, gaps).mT, bits).contiguous())


def _shape_of_plain(parts: Parts) -> list[int]:
    return parts.form(".weight")[1]


def _plain_weight(parts: Parts, block: Sequence[int]) -> Integers | torch.Tensor:
    weight, scales = parts[".weight"], parts[".weight_scale"]
    if weight.dtype != torch.int8:
        return floats.scaled(weight, floats.of_exponents(scales) if scales.dtype == torch.uint8 else scales, block)
    stored = parts.get(".weight_zero_point")
    zeros = None if stored is None else none_if_zeros(by_row(stored.to(torch.int8), len(weight)))
    return _integers(weight, by_row(scales.float(), len(weight)), zeros, 8, parts)


def _integers(
    values: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, bits: int, parts: Parts
) -> Integers:
    return Integers(values, scales, zeros, bits, order(parts.get(".weight_g_idx"), scales.shape[1]))
