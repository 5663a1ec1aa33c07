"""The statistics of `etbuild bench`: intervals that hold, and verdicts that do not see what is not there."""

from __future__ import annotations

import random

import pytest

from etkit.running.benchmarking import intervals
from etkit.running.benchmarking.intervals import Verdict


@pytest.mark.parametrize(("count", "left_out"), [(6, 0), (8, 3), (10, 8), (12, 13), (20, 52), (25, 89)])
def test_the_interval_leaves_out_what_tables_say(count: int, left_out: int) -> None:
    # The critical values of the signed-rank test, two-sided at 5 %, as textbooks print them.
    assert intervals._left_out(count) == left_out


def test_an_interval_of_few_values_is_none_and_one_wild_value_moves_it_little() -> None:
    assert intervals.signed_rank([1.0] * 5) is None
    calm = intervals.signed_rank([1.0 + number / 100 for number in range(12)])
    wild = intervals.signed_rank([1.0 + number / 100 for number in range(11)] + [1000.0])
    assert calm is not None
    assert wild is not None
    assert calm.low < 1.055 < calm.high
    assert calm.centre == pytest.approx(1.055)
    assert wild.centre < 1.07


@pytest.mark.parametrize(("share", "value"), [(0.0, 1.0), (0.5, 2.0), (0.51, 3.0), (0.9, 4.0), (1.0, 4.0)])
def test_a_quantile_is_one_of_the_values(share: float, value: float) -> None:
    assert intervals.quantile([1.0, 2.0, 3.0, 4.0], share) == value


def noisy(drawn: random.Random, drift: float) -> float:
    """The time of a run on a machine that is now and then much slower."""
    return drift * drawn.lognormvariate(0, 0.1) * (3 if drawn.random() < 0.1 else 1)


def simulated(seed: int, factor: float, runs: int = 12) -> Verdict:
    """Two programs in turns, on a machine that becomes twice as slow meanwhile."""
    drawn = random.Random(seed)
    drifts = [1 + number / runs for number in range(runs)]
    return intervals.verdict(
        [factor * noisy(drawn, drift) for drift in drifts], [noisy(drawn, drift) for drift in drifts]
    )


def test_equal_programs_differ_in_one_of_twenty_comparisons_at_most() -> None:
    wrong = sum(simulated(seed, 1.0).outcome != "no difference shown" for seed in range(600))
    assert wrong / 600 < 0.07


def test_a_true_difference_is_seen_and_the_interval_contains_it() -> None:
    found = [simulated(seed, 2.0) for seed in range(200)]
    outcomes = [each.outcome for each in found]
    assert outcomes.count("slower") > 190
    assert "faster" not in outcomes
    assert sum(each.low <= 1.0 <= each.high for each in found) / 200 > 0.92
    assert simulated(0, 0.5).outcome == "faster"


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        (Verdict(0.123, 0.09, 0.15), "slower: 12.3 % more time (95 % interval 9.0 to 15.0 %)"),
        (Verdict(-0.123, -0.15, -0.09), "faster: 12.3 % less time (95 % interval 9.0 to 15.0 %)"),
        (Verdict(0.0, -0.03, 0.02), "no difference shown (95 % interval -3.0 to +2.0 %)"),
    ],
)
def test_a_verdict_in_words(verdict: Verdict, text: str) -> None:
    assert str(verdict) == text
