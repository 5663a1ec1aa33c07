"""What `etbuild inspect` says about planned memory."""

from __future__ import annotations

import random

import pytest

from etbuild.results import MemoryPlan, PlannedTensor
from etkit.inspection import details


def tensor(first: int, last: int, size: int, of: str) -> PlannedTensor:
    return {"arena": 1, "offset": 0, "bytes": size, "first": first, "last": last, "of": of}


def slowly(plan: MemoryPlan) -> list[tuple[int, str]]:
    """The largest tensors at the worst moment, by looking at each moment."""
    moments = sorted({each["first"] for each in plan["tensors"]})
    in_use = [[each for each in plan["tensors"] if each["first"] <= moment <= each["last"]] for moment in moments]
    worst = max(in_use, key=lambda tensors: sum(each["bytes"] for each in tensors), default=[])
    total = sum(each["bytes"] for each in worst)
    largest = sorted(worst, key=lambda each: -each["bytes"])[:2]
    return [(each["bytes"], each["of"]) for each in largest if each["bytes"] >= total / 4]


def named(plan: MemoryPlan) -> list[tuple[int, str]]:
    return [(each.bytes, each.of) for each in details.large_tensors(plan)]


@pytest.mark.parametrize("seed", range(50))
def test_the_worst_moment_is_found_in_one_sweep(seed: int) -> None:
    choose = random.Random(seed)
    tensors = []
    for number in range(choose.randrange(12)):
        first = choose.randrange(8)
        tensors.append(tensor(first, first + choose.randrange(4), choose.choice((0, 1, 2, 4)), str(number)))
    plan: MemoryPlan = {"instructions": 12, "tensors": tensors}
    assert named(plan) == slowly(plan)


def test_tensors_that_end_before_another_begins_are_not_in_use_together() -> None:
    plan: MemoryPlan = {"instructions": 4, "tensors": [tensor(0, 1, 8, "a"), tensor(2, 3, 9, "b")]}
    assert named(plan) == [(9, "b")]
