"""Intervals that assume nothing about the distribution of times, and the verdict about two programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

FEWEST = 6
"""The least number of values: with fewer, no interval reaches 95 %."""
MOST = 200
"""The largest number of values: more take long to compute with, and say little more."""
_TAIL = 0.025


@dataclass(frozen=True)
class Interval:
    """A centre with its 95 % interval."""

    centre: float
    low: float
    high: float


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that is as large as a share of all of them.

    Args:
        ordered: The values, sorted. There is at least one.
        share: From 0 to 1.
    """
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def signed_rank(values: Sequence[float]) -> Interval | None:
    """The Hodges-Lehmann centre of values, and its 95 % interval by Wilcoxon's signed-rank test.

    It holds for any symmetric distribution, and one extreme value moves it little. See Hollander, Wolfe and Chicken,
    "Nonparametric Statistical Methods", section 3.3.

    Args:
        values: Independent values.

    Returns:
        None if there are fewer than `FEWEST` values.
    """
    count = len(values)
    if count < FEWEST:
        return None
    averages = sorted((a + b) / 2 for index, a in enumerate(values) for b in values[index:])
    left_out = _left_out(count)
    middle = len(averages) // 2
    centre = averages[middle] if len(averages) % 2 else (averages[middle - 1] + averages[middle]) / 2
    return Interval(centre, averages[left_out], averages[-1 - left_out])


def _left_out(count: int) -> int:
    """How many of the averages of pairs the interval leaves out, on each side.

    This is the largest number with a probability of at most 2.5 % that a sum of ranks does not exceed it.
    """
    ways = [1]  # for each sum, how many subsets of the ranks so far have it
    for rank in range(1, count + 1):
        ways = [
            (ways[total] if total < len(ways) else 0) + (ways[total - rank] if total >= rank else 0)
            for total in range(len(ways) + rank)
        ]
    allowed, so_far = _TAIL * 2**count, 0
    for total, each in enumerate(ways):
        so_far += each
        if so_far > allowed:
            return total - 1
    raise AssertionError("the probabilities add up to 1")


@dataclass(frozen=True)
class Verdict:
    """How the times of a program differ from those of another one.

    Attributes:
        change: The change of the time as a fraction: 0.1 if a call takes 10 % more time than with the other program.
        low, high: The ends of its 95 % interval.
    """

    change: float
    low: float
    high: float

    @property
    def outcome(self) -> str:
        """`faster`, `slower`, or `no difference shown`."""
        return "slower" if self.low > 0 else "faster" if self.high < 0 else "no difference shown"

    def __str__(self) -> str:
        change, low, high = (100 * each for each in (self.change, self.low, self.high))
        if self.outcome == "slower":
            return f"slower: {change:.1f} % more time (95 % interval {low:.1f} to {high:.1f} %)"
        if self.outcome == "faster":
            return f"faster: {-change:.1f} % less time (95 % interval {-high:.1f} to {-low:.1f} %)"
        return f"no difference shown (95 % interval {low:+.1f} to {high:+.1f} %)"


def verdict(times: Sequence[float], others: Sequence[float]) -> Verdict:
    """Compares two programs that ran in turns.

    Args:
        times: The typical time of a call in each run of a program, at least `FEWEST`.
        others: The same of the other program, in the run beside it. A slow phase of the machine slows both.
    """
    found = signed_rank([math.log(time / other) for time, other in zip(times, others, strict=True)])
    assert found is not None
    return Verdict(*(math.expm1(each) for each in (found.centre, found.low, found.high)))
