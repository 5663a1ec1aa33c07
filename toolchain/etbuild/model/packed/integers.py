"""A weight as integers with scales, and whether XNNPACK's layers can hold it so."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

_XNNPACK_GROUP = 32  # weights: XNNPACK's layers of 4 bits take groups of a multiple


@dataclass(frozen=True)
class Integers:
    """A weight as integers. An element is `scale * (value - zero)`, with the scale and the zero of its group: some
    neighbours in a row.

    Attributes:
        values: int8 `[rows, columns]`, around zero.
        scales: float32 `[rows, groups]`.
        zeros: int8 `[rows, groups]`; None if all are zero.
        bits: How many bits a value has.
        group_of: The group of each column; None if groups have neighbours.
    """

    values: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    bits: int
    group_of: torch.Tensor | None = None

    def __post_init__(self) -> None:
        """Raises ValueError if the shapes do not fit to each other."""
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
        """How many neighbours share a scale."""
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
        """The same weight with positive scales, as XNNPACK needs them: groups of zeros get the scale 1. A scale stays
        negative if the values of its group have no negative."""
        lowest = -8 if self.bits <= 4 else -128
        values, scales = self.values.reshape(*self.scales.shape, self.group), self.scales.unsqueeze(-1)
        if bool((scales > 0).all()):
            return self
        turned = (scales < 0) & (values.amin(-1, keepdim=True) > lowest)
        values = torch.where(turned, -values, values).masked_fill(scales == 0, 0)
        scales = torch.where(turned, -scales, scales).masked_fill(scales == 0, 1).squeeze(-1)
        return replace(self, values=values.view(self.values.shape), scales=scales)

    def spilled(self, spill: Callable[[torch.Tensor], torch.Tensor]) -> Integers:
        """The same weight, with its tensors where `spill` puts them."""
        values, scales = map(spill, (self.values, self.scales))
        return replace(self, values=values, scales=scales)

    def misfit(self, kind: str) -> str | None:
        """Why a layer of a program cannot hold these integers, for users; None if it can.

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


def unpacked(words: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """The numbers in words of 32 bits, the lowest bits first. A number may begin in a word and end in the next one.

    Args:
        words: int32 `[rows, words]`.
        bits: How many bits a number has: 1 to 8.
        count: The numbers in a row.

    Returns:
        uint8 `[rows, count]`.
    """
    if words.dtype != torch.int32 or words.dim() != 2:
        raise ValueError(f"{words.dtype}{list(words.shape)} are not rows of words of 32 bits")
    again = 32 // math.gcd(32, bits)  # after so many numbers, one begins with a word again
    step = again * bits // 32
    words = torch.nn.functional.pad(words, (0, -words.shape[1] % step)).contiguous()  # six times faster if transposed
    found = torch.empty(words.shape[0], words.shape[1] // step * again, dtype=torch.uint8)
    for index in range(again):
        word, first = divmod(index * bits, 32)
        number = words[:, word::step] >> first  # with copies of the sign in the highest bits
        if (below := 32 - first) < bits:
            number = (number & ((1 << below) - 1)) | (words[:, word + 1 :: step] << below)
        found[:, index::again] = number & ((1 << bits) - 1)
    if found.shape[1] < count:
        raise ValueError(f"{found.shape[1]} numbers in a row are less than {count}")
    return found[:, :count]


def centered(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """Numbers without a sign as int8: the middle of their range becomes zero. They are changed in place."""
    return numbers.sub_(1 << (bits - 1)).view(torch.int8)  # uint8 wraps


def order(index: torch.Tensor | None, groups: int) -> torch.Tensor | None:
    """The group of each column; None if groups have neighbours, as without an index."""
    if index is None or int(index.min()) < 0:  # -1: nothing wrote an order
        return None
    plain = torch.arange(len(index), dtype=index.dtype) // max(1, len(index) // groups)
    return None if torch.equal(index, plain) else index


def by_row(numbers: torch.Tensor, rows: int) -> torch.Tensor:
    """Scales or zero points `[rows, groups]`, of a whole tensor too."""
    numbers = numbers.reshape(-1, 1) if numbers.dim() < 2 else numbers
    return numbers.expand(rows, -1).contiguous() if len(numbers) == 1 else numbers


def none_if_zeros(zeros: torch.Tensor) -> torch.Tensor | None:
    """Zero points; None if all are zero."""
    return zeros if bool(zeros.any()) else None
