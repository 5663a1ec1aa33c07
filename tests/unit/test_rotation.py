"""`pytest --day` runs another part of the long matrices each day, and in the end all of them."""

from __future__ import annotations

import pytest

from tests.helpers.rotation import left_out

pytest_plugins = ["pytester"]

TESTS = """
import pytest

@pytest.mark.rotates(days=3, always=["a"])
@pytest.mark.parametrize("name", "abcdef")
def test_letters(name): ...

@pytest.mark.rotates(days=3)
@pytest.mark.parametrize("name", "bcdef")
def test_the_same_letters(name): ...

@pytest.mark.rotates(days=2)
def test_one(): ...

@pytest.mark.rotates(days=2)
def test_two(): ...

@pytest.mark.parametrize("name", [1, pytest.param(2, marks=pytest.mark.rotates(days=2, part=1))])
def test_numbers(name): ...

@pytest.mark.rotates(days=2, part=1)
def test_with_the_two(): ...

def test_always(): ...
"""
DAYS = range(20_000, 20_006)


@pytest.fixture
def runs(pytester: pytest.Pytester) -> list[set[str]]:
    """The names of the tests that run, by day."""
    pytester.makeini("[pytest]\nmarkers = rotates")
    items = pytester.getitems(TESTS)
    return [{item.name for item in items} - {item.name for item in left_out(items, day)} for day in DAYS]


def test_each_case_runs_on_one_day_of_a_round(runs: list[set[str]]) -> None:
    for case in "bcdef":
        assert sum(f"test_letters[{case}]" in day for day in runs) == 2
    assert [len({name for name in day if name.startswith("test_letters")}) for day in runs[:3]] in (
        [2, 3, 3],
        [3, 2, 3],
        [3, 3, 2],
    )


def test_a_case_that_is_not_there_is_an_error(pytester: pytest.Pytester) -> None:
    items = pytester.getitems(TESTS.replace('["a"]', '["z"]'))
    with pytest.raises(pytest.UsageError, match=r"test_letters: there is no case 'z'"):
        left_out(items, 0)


def test_what_has_no_marker_and_what_is_named_runs_each_day(runs: list[set[str]]) -> None:
    assert all({"test_always", "test_letters[a]", "test_numbers[1]"} <= day for day in runs)


def test_the_same_cases_of_two_tests_run_on_the_same_days(runs: list[set[str]]) -> None:
    for case in "bcdef":
        assert [f"test_letters[{case}]" in day for day in runs] == [
            f"test_the_same_letters[{case}]" in day for day in runs
        ]


def test_tests_without_cases_take_turns(runs: list[set[str]]) -> None:
    assert all(len(day & {"test_one", "test_two"}) == 1 for day in runs)
    assert runs[0] & {"test_one", "test_two"} != runs[1] & {"test_one", "test_two"}


def test_a_part_is_the_same_for_all_that_name_it(runs: list[set[str]]) -> None:
    together = {"test_numbers[2]", "test_with_the_two"}
    assert [day & together for day in runs] == [set(), together] * 3
