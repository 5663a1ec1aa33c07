"""A weight as integers with scales, and a check of whether XNNPACK's layers can hold it in this form."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

_XNNPACK_GROUP = 32  # in XNNPACK's layers of 4 bits, the size of a group is a multiple of this


@dataclass(frozen=True)
class Integers:
    """A weight as integers. An element is `scale * (value - zero)`, with the scale and the zero point of its group.

    Attributes:
        values: int8 `[rows, columns]`, around zero.
        scales: float32 `[rows, groups]`.
        zeros: Zero points, int8 `[rows, groups]`; None if all are zero.
        bits: The number of bits of a value.
        group_of: The group of each column; None if each group consists of neighbours in a row.
    """

    values: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    bits: int
    group_of: torch.Tensor | None = None

    def __post_init__(self) -> None:
        """Raises ValueError if the shapes do not fit each other."""
        (rows, columns), groups = self.values.shape, self.scales.shape[-1]
        forms = [self.scales.shape, *([] if self.zeros is None else [self.zeros.shape])]
        if any(form != (rows, groups) for form in forms) or (self.group_of is None and columns % groups):
            shapes = " and ".join(str(list(form)) for form in forms)
            raise ValueError(f"integers {rows} x {columns} have scales or zero points of the shapes {shapes}")
        index = self.group_of
        if index is not None and (index.shape != (columns,) or int(index.min()) < 0 or int(index.max()) >= groups):
            raise ValueError(f"the groups of {columns} columns are not numbers below {groups}")

    @property
    def group(self) -> int:
        """The number of neighbours that share a scale."""
        return int(self.values.shape[1] // self.scales.shape[1])

    def dequantized(self) -> torch.Tensor:
        """The weight in float32."""
        if self.group_of is not None:
            index = self.group_of.long()
            centered = self.values.float() - (0 if self.zeros is None else self.zeros.float()[:, index])
            return centered * self.scales[:, index]
        grouped = self.values.float().reshape(*self.scales.shape, self.group)
        if self.zeros is not None:
            grouped -= self.zeros.float().unsqueeze(-1)
        return (grouped * self.scales.unsqueeze(-1)).view(self.values.shape)

    def positive(self) -> Integers:
        """The same weight with positive scales, which XNNPACK needs. Groups with the scale 0 get zeros and the scale 1.
        A scale stays negative if its group has the lowest value: its opposite does not fit."""
        lowest = -8 if self.bits <= 4 else -128
        values, scales = self.values.reshape(*self.scales.shape, self.group), self.scales.unsqueeze(-1)
        if bool((scales > 0).all()):
            return self
        is_negated = (scales < 0) & (values.amin(-1, keepdim=True) > lowest)
        values = torch.where(is_negated, -values, values).masked_fill(scales == 0, 0)
        scales = torch.where(is_negated, -scales, scales).masked_fill(scales == 0, 1).squeeze(-1)
        return replace(self, values=values.view(self.values.shape), scales=scales)

    def spilled(self, spill: Callable[[torch.Tensor], torch.Tensor]) -> Integers:
        """The same weight, with the tensors that `spill` returns."""
        values, scales = map(spill, (self.values, self.scales))
        return replace(self, values=values, scales=scales)

    def misfit(self, kind: str) -> str | None:
        """The reason why a layer of a program cannot hold these integers, for users; None if it can.

        Args:
            kind: The kind of the layer: `linear` or `embedding`.
        """
        if self.group_of is not None:
            return "its groups do not have neighbours (`desc_act`)"
        if self.zeros is not None:
            return "its zero points are not zero (asymmetric)"
        if not bool(self.scales.isfinite().all()):
            return "a scale is infinite"
        if kind == "embedding":
            return None
        if not bool((self.positive().scales >= torch.finfo(torch.float32).tiny).all()):
            return "a scale is negative, and XNNPACK takes none"
        if self.bits > 4 and self.group != self.values.shape[1]:
            return f"its values have {self.bits} bits and groups of {self.group}, and XNNPACK's groups have 4 bits"
        if self.bits <= 4 and self.group % _XNNPACK_GROUP:
            return f"its groups have {self.group} weights, and those of XNNPACK a multiple of {_XNNPACK_GROUP}"
        return None


def unpacked(words: torch.Tensor, bits: int, count: int, gaps: bool = False) -> torch.Tensor:
    """The numbers in words of 32 bits, the lowest bits first.

    Args:
        words: int32 `[rows, words]`.
        bits: The number of bits of a number: 1 to 8.
        count: The number of numbers in a row.
        gaps: Each word begins with a new number, and its last bits are not used if no whole number fits. Without gaps,
            a number may begin in one word and end in the next one.

    Returns:
        uint8 `[rows, count]`.
    """
    if words.dtype != torch.int32 or words.dim() != 2:
        raise ValueError(f"{words.dtype}{list(words.shape)} are not rows of words of 32 bits")
    period = 32 // (bits if gaps else math.gcd(32, bits))  # after these numbers, a number starts at a word again
    step = 1 if gaps else period * bits // 32
    words = torch.nn.functional.pad(words, (0, -words.shape[1] % step)).contiguous()  # six times faster if transposed
    numbers = torch.empty(words.shape[0], words.shape[1] // step * period, dtype=torch.uint8)
    for index in range(period):
        word, shift = divmod(index * bits, 32)
        number = words[:, word::step] >> shift  # the highest bits are copies of the sign
        if (bits_in_word := 32 - shift) < bits:
            number = (number & ((1 << bits_in_word) - 1)) | (words[:, word + 1 :: step] << bits_in_word)
        numbers[:, index::period] = number & ((1 << bits) - 1)
    if numbers.shape[1] < count:
        raise ValueError(f"{numbers.shape[1]} numbers in a row are less than {count}")
    return numbers[:, :count]


def centered(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """Unsigned numbers (uint8) as int8, with the middle of their range at zero. `numbers` is changed in place."""
    return numbers.sub_(1 << (bits - 1)).view(torch.int8)  # uint8 wraps around to the bits of int8


def order(index: torch.Tensor | None, groups: int) -> torch.Tensor | None:
    """The group of each column; None if groups consist of neighbours, or there is no index."""
    if index is None or int(index.min()) < 0:  # -1: the library has not written an index
        return None
    ascending = torch.arange(len(index), dtype=index.dtype) // max(1, len(index) // groups)
    return None if torch.equal(index, ascending) else index


def by_row(numbers: torch.Tensor, rows: int) -> torch.Tensor:
    """Scales or zero points as `[rows, groups]`. They may be given for the whole tensor."""
    numbers = numbers.reshape(-1, 1) if numbers.dim() < 2 else numbers
    return numbers.expand(rows, -1).contiguous() if len(numbers) == 1 else numbers


def none_if_zeros(zeros: torch.Tensor) -> torch.Tensor | None:
    """Returns the zero points, or None if all are zero."""
    return zeros if bool(zeros.any()) else None
