"""GPTQ and AWQ: integers in words of 32 bits, which XNNPACK's layers hold if they are symmetric."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from etplugins.packed.integers import Integers, centered, none_if_zeros, order, unpacked
from etplugins.packed.layout import Layout, Parts

_NEEDED = (".qweight", ".qzeros", ".scales")
_AWQ_BITS = 4
_AWQ_ORDER = [0, 4, 1, 5, 2, 6, 3, 7]
"""For each of eight neighbours in a row, its position in the word."""


def gptq(config: Mapping[str, Any]) -> Layout:
    """The layout of GPTQ, which packs columns. The first version of the format stores zero points minus 1."""
    bits: Any = config.get("bits")
    version = config.get("checkpoint_format", "gptq")

    def shape(parts: Parts) -> list[int]:
        words, rows = parts.form(".qweight")[1]
        return [rows, words * 32 // bits]

    def read(parts: Parts) -> Integers:
        rows, columns = shape(parts)
        values = centered(unpacked(parts[".qweight"].mT, bits, columns), bits)
        zeros = unpacked(parts[".qzeros"], bits, rows) + (version == "gptq")
        zeros = centered(zeros & ((1 << bits) - 1), bits).mT.contiguous()
        scales = parts[".scales"].float().mT.contiguous()
        index = order(parts.get(".g_idx"), scales.shape[1])
        return Integers(values, scales, none_if_zeros(zeros), bits, index)

    return Layout(_NEEDED, shape, read, (".g_idx",))


def awq() -> Layout:
    """The layout of AWQ, which packs rows, in the order `_AWQ_ORDER`."""

    def shape(parts: Parts) -> list[int]:
        columns, words = parts.form(".qweight")[1]
        return [words * 8, columns]

    def by_row(words: torch.Tensor) -> torch.Tensor:
        numbers = unpacked(words, _AWQ_BITS, words.shape[1] * 8).view(len(words), -1, 8)
        return centered(numbers[..., _AWQ_ORDER].flatten(1).mT.contiguous(), _AWQ_BITS)

    def read(parts: Parts) -> Integers:
        values, scales = by_row(parts[".qweight"]), parts[".scales"].float().mT.contiguous()
        return Integers(values, scales, none_if_zeros(by_row(parts[".qzeros"])), _AWQ_BITS)

    return Layout(_NEEDED, shape, read)
