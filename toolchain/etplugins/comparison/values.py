"""Makes the inputs of compared calls, of kinds of numbers that show different mistakes.

The same generator makes the same tensors on each machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from etplugins.comparison import random_values
from etplugins.comparison.hints import Integers
from etplugins.comparison.layout import is_channels_last
from etplugins.comparison.random_values import Limits

NORMAL, MIXED, POSITIVE, FLAT, ZEROS, SMALL, TINY, OFFSET, LARGE = (
    "normally distributed",
    "of many magnitudes",
    "between 0 and 1",
    "all the same",
    "all zero",
    "small",
    "tiny",
    "around 1000",
    "large",
)
UNIFORM, DIFFERENT, LAST, FIRST, ENDS, WALK = "any", "all different", "the largest", "the smallest", "the ends", "next"
WIDE = "of the wide range"
SOME, ALL, NONE, ONE = "some", "all", "none", "one"
INTEGERS = (UNIFORM, ENDS, DIFFERENT, LAST, ONE, WIDE, DIFFERENT, FIRST)
BOOLEANS = (SOME, ALL, NONE, ONE)
EXTREME = (OFFSET, LARGE)
FAR = 1000.0
"""Numbers from this size on are far from usual ones: the tolerance for them would hide errors of usual numbers."""
_FLAT, _SMALL, _TINY, _OFFSET, _LARGE = 0.7, 1e-3, 1e-6, 1000.0, 100.0
_TURNS = 1 << 20  # in a smaller range, all integers are used before one comes again
_SMALL_OFFSET = 4.0  # for floats of 16 bits, in which neighbours around 1000 are 1 or 4 apart
_NEAR = (0.97, 1.03)  # factors for numbers beside a constant of the graph
_USUAL = (1.0, 5.0, 25.0)  # magnitudes that are tried whatever the graph has


@dataclass(frozen=True)
class Kind:
    """Which numbers the inputs of a call have.

    Attributes:
        floats: The kind of the floating-point numbers.
        integers: The kind of the integers.
        booleans: The kind of the booleans.
        scale: The factor of floating-point numbers.
        only: The number of the input whose floating-point numbers are of the kind, while those of others are normally
            distributed; None for all.
    """

    floats: str = NORMAL
    integers: str = UNIFORM
    booleans: str = SOME
    scale: float = 1.0
    only: int | None = None

    def of(self, index: int) -> Kind:
        """The kind of one input."""
        return self if self.only in (None, index) else replace(self, floats=NORMAL, scale=1.0)

    @property
    def is_extreme(self) -> bool:
        """Whether numbers may be so large that the method overflows: then there is nothing to compare."""
        return self.floats in EXTREME or self.scale > _LARGE or self.integers == WIDE


@dataclass(eq=False)
class Input:
    """One input that is a tensor, and what is known about it.

    Attributes:
        example: Its example.
        limits: Its range in the manifest; None if there is none.
        magnitudes: How large a floating-point number may be, by the constants of the graph.
        integers: What an integer can be; None for other dtypes.
        known: The largest integer that PyTorch has taken.
        refused: The smallest one that it has refused.
        next: The next integer of the kind `WALK`.
        is_wide: Whether the values that were made last are of the wide range.
    """

    example: torch.Tensor
    limits: Limits | None
    magnitudes: Sequence[float] = ()
    integers: Integers | None = None
    known: int = 0
    refused: int | None = None
    next: int = 0
    is_wide: bool = False
    _used: int = field(default=0, repr=False)
    _place: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        if self.integers is not None and self.limits is not None:
            low, high = math.ceil(self.limits[0]), math.floor(self.limits[1])
            special = tuple(each for each in self.integers.special if low <= each <= high)
            self.integers = Integers(low, high, special)
        if self.integers is not None and self.example.numel():
            self.known = int(self.example.max())

    @property
    def range(self) -> int:
        """The size of the range of integers; 0 for other dtypes."""
        return 0 if self.integers is None else self.integers.most - self.integers.least

    def _most(self, caution: int) -> int:
        """The largest integer to try. With more caution, it is nearer to integers that PyTorch has taken."""
        assert self.integers is not None
        most = self.integers.most
        if self.refused is not None:
            most = self.known + (self.refused - self.known) // 2
        most = [most, self.known + (most - self.known) // 2, self.known][caution]
        return max(most, self.integers.least)

    def refuse(self) -> None:
        """Notes that PyTorch has refused the values that were made last. The next ones are smaller."""
        if self.is_wide and self.integers is not None:
            self.integers, self.is_wide = replace(self.integers, wide=None), False
        elif self.integers is not None and self._used > self.known:
            self.refused = self._used

    def take(self) -> None:
        """Notes that PyTorch has taken the values that were made last."""
        if self.is_wide and self.integers is not None and self.integers.wide is not None:
            self.is_wide = False
            if self.integers.is_mask or self.example.numel() < len(self.integers.wide):  # without both ends
                return
            least, most = self.integers.wide
            self.integers, self.known = replace(self.integers, least=least, most=most, wide=None), most
        if self.integers is not None:
            self.known = max(self.known, self._used)

    def made(self, shape: Sequence[int], kind: Kind, generator: torch.Generator, caution: int = 0) -> torch.Tensor:
        """A tensor of a kind.

        Args:
            shape: Its shape.
            kind: The kind.
            generator: Where random numbers come from.
            caution: 1 for smaller integers than otherwise, 2 for those that PyTorch is known to take.
        """
        found = self._made(shape, kind, generator, caution)
        return found.contiguous(memory_format=torch.channels_last) if is_channels_last(self.example) else found

    def _made(self, shape: Sequence[int], kind: Kind, generator: torch.Generator, caution: int) -> torch.Tensor:
        dtype = self.example.dtype
        if dtype == torch.bool:
            some = torch.randint(0, 2, tuple(shape), generator=generator).bool()
            if kind.booleans == SOME:
                return some
            found = torch.full_like(some, kind.booleans == ALL)
            found.view(-1)[:1] |= kind.booleans == ONE
            return found
        if self.integers is not None:
            found = self._integers(shape, kind.integers, generator, self._most(caution))
            self._used = int(found.max()) if found.numel() else 0
            return found.to(dtype)
        if not dtype.is_floating_point or self.limits is not None or not bool(self.example.isfinite().all()):
            return self._within(shape, kind, generator)
        return self._floats(shape, kind, generator).to(dtype)

    def _within(self, shape: Sequence[int], kind: Kind, generator: torch.Generator) -> torch.Tensor:
        """A tensor in the range of the manifest, or with the numbers of the example."""
        if self.limits is None or kind.floats not in (FLAT, ZEROS, LARGE, MIXED):
            return random_values.like(self.example, shape, self.limits, generator)
        low, high = self.limits
        if kind.floats == MIXED:
            ends = torch.tensor([low, high, (low + high) / 2], dtype=self.example.dtype)
            return ends[torch.randint(0, 3, tuple(shape), generator=generator)]
        value = {FLAT: (low + high) / 2, ZEROS: low, LARGE: high}[kind.floats]
        return torch.full(tuple(shape), value, dtype=self.example.dtype)

    def _floats(self, shape: Sequence[int], kind: Kind, generator: torch.Generator) -> torch.Tensor:
        size = tuple(shape)
        if kind.floats in (FLAT, ZEROS):
            return torch.full(size, _FLAT * (kind.floats == FLAT))
        if kind.floats == POSITIVE:
            return torch.rand(size, generator=generator)
        if kind.floats == MIXED:
            return self._mixed(size, generator)
        normal = torch.randn(size, generator=generator) * kind.scale
        tiny = _TINY if self.example.element_size() >= 4 else _SMALL
        large = _LARGE if self.example.element_size() >= 4 else _LARGE / 4
        offset = _OFFSET if self.example.element_size() >= 4 else _SMALL_OFFSET
        return {SMALL: normal * _SMALL, TINY: normal * tiny, OFFSET: normal + offset, LARGE: normal * large}.get(
            kind.floats, normal
        )

    def _mixed(self, size: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
        """Numbers around the constants of the graph, and numbers of several magnitudes.

        None equals a constant: rounding would decide on which side of the constant it is, and so would excuse errors.
        """
        sizes, count = [*_USUAL, *(each for each in self.magnitudes if each < FAR)], math.prod(size)
        numbers = torch.tensor(sizes)[torch.randint(0, len(sizes), (count,), generator=generator)]
        numbers = numbers * (torch.rand(count, generator=generator) * 3 - 1.5)
        edges = torch.tensor([sign * each * near for each in sizes for near in _NEAR for sign in (1, -1)]).flip(0)
        edges = edges[: count // 2]  # first the numbers beside the graph's own constants
        places = torch.randperm(count, generator=generator)[: len(edges)]
        return numbers.index_copy(0, places, edges).view(size)

    def _integers(self, shape: Sequence[int], kind: str, generator: torch.Generator, most: int) -> torch.Tensor:
        assert self.integers is not None
        size, least = tuple(shape), self.integers.least
        count = math.prod(size)
        self.is_wide = kind == WIDE and self.integers.wide is not None
        if self.is_wide and self.integers.wide is not None:
            low, high = self.integers.wide
            found = torch.randint(low, high + 1, (count,), generator=generator)
            ends = torch.tensor([low, high])
            return torch.cat([ends, found[len(ends) :]])[:count].view(size)
        own = self.example.flatten()
        positions = self.example.dim() == 1 and own.numel() > 1 and bool((own.diff() == 1).all())
        if positions or (kind == WALK and count == 1):  # positions stay positions
            last = max(most - count + 1, least)
            first = {FIRST: least, LAST: last}.get(kind, least + (self.next - least) % (last - least + 1))
            self.next = first + count
            return torch.arange(first, first + count).view(size)
        if kind in (LAST, FIRST, ONE):
            found = torch.full(size, most if kind == LAST else least)
            if kind == ONE:
                found.view(-1)[:1] = most
            return found
        if kind == DIFFERENT and most - least < _TURNS:
            return (self._unused(count, most - least + 1) + least).view(size)
        special = [each for each in self.integers.special if each <= most]
        if kind == ENDS or most - least >= 2**32:  # random ones of so many would all be large
            ends = torch.tensor([*special, least, most, min(least + 1, most), max(most - 1, least)])
            found = ends[torch.randint(0, len(ends), (count,), generator=generator)]
            first = ends[: (count + 1) // 2] if kind == ENDS else ends[:0]  # the integers with which the graph compares
            return torch.cat([first, found[len(first) :]]).view(size)
        return torch.randint(least, most + 1, size, generator=generator)

    def _unused(self, count: int, among: int) -> torch.Tensor:
        """Numbers from 0 to `among - 1` in a random order. All are used before one comes again."""
        places = torch.arange(self._place, self._place + count) % among
        self._place += count
        return torch.randperm(among, generator=torch.Generator().manual_seed(among))[places]
