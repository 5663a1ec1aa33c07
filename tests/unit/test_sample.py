"""The sample of a test file: it is fixed, never empty, and the same for tests that share what they need."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.helpers.sample import drawn, not_in_sample

pytest_plugins = ["pytester"]

TESTS = """
import pytest

PARTS = ("left", "right")

@pytest.mark.sample(one_of=3, always=["a"])
@pytest.mark.parametrize("name", "abcdef")
def test_letters(name): ...

@pytest.mark.sample(one_of=3)
@pytest.mark.parametrize("name", "bcdef")
def test_the_same_letters(name): ...

@pytest.mark.sample(one_of=1)
@pytest.mark.parametrize("name", "abcdef")
def test_all_letters(name): ...

@pytest.mark.sample(one_of=None)
def test_never(): ...

@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.sample(one_of=2, part=name, parts=PARTS)) for name in PARTS
])
def test_parts(name): ...

@pytest.mark.sample(one_of=2, part="left", parts=PARTS)
def test_left(): ...

@pytest.mark.sample(one_of=2, part="right", parts=PARTS)
def test_right(): ...

@pytest.mark.parametrize("number", range(8))
def test_numbers(number): ...

@pytest.mark.parametrize("number", range(8))
def test_the_same_numbers(number): ...

def test_one(): ...

def test_two(): ...

@pytest.mark.quick
def test_quick(): ...
"""
UNMARKED = ("test_numbers", "test_the_same_numbers", "test_one", "test_two")


def sample(pytester: pytest.Pytester, *, short: bool = False) -> set[str]:
    pytester.makeini("[pytest]\nmarkers =\n  sample\n  quick")
    items = pytester.getitems(TESTS)
    absent = not_in_sample(items, is_short=lambda file: short)
    return {item.name for item in items} - {item.name for item in absent}


@pytest.fixture
def taken(pytester: pytest.Pytester) -> set[str]:
    """The names of the tests in the sample."""
    return sample(pytester)


def cases(taken: set[str], test: str) -> set[str]:
    return {name.partition("[")[2] for name in taken if name.partition("[")[0] == test}


def test_a_matrix_has_its_share_of_cases_and_those_that_are_always_there(taken: set[str]) -> None:
    assert len(cases(taken, "test_letters")) == 1 + 2
    assert "test_letters[a]" in taken
    assert cases(taken, "test_all_letters") == {f"{name}]" for name in "abcdef"}


def test_the_same_cases_of_two_tests_are_taken(taken: set[str]) -> None:
    assert cases(taken, "test_letters") - {"a]"} == cases(taken, "test_the_same_letters")
    assert cases(taken, "test_numbers") == cases(taken, "test_the_same_numbers")


def test_a_part_is_taken_wherever_it_is_named(taken: set[str]) -> None:
    left, right = {"test_parts[left]", "test_left"}, {"test_parts[right]", "test_right"}
    assert taken & (left | right) in (left, right)


def test_a_file_has_a_fifth_of_its_cases_unless_it_is_short(taken: set[str], pytester: pytest.Pytester) -> None:
    different = {name.replace("the_same_", "") for name in taken if name.startswith(UNMARKED)}
    assert len(different) == 2  # of eight numbers and two tests without
    of_short = sample(pytester, short=True)
    assert len([name for name in of_short if name.startswith(UNMARKED)]) == 2 * 8 + 2
    assert cases(of_short, "test_letters") == cases(taken, "test_letters")


def test_a_sample_may_have_all_of_a_test_or_nothing(taken: set[str]) -> None:
    assert "test_quick" in taken
    assert "test_never" not in taken


def test_a_case_that_is_not_there_is_an_error(pytester: pytest.Pytester) -> None:
    items = pytester.getitems(TESTS.replace('["a"]', '["z"]'))
    with pytest.raises(pytest.UsageError, match=r"test_letters: there is no case 'z'"):
        not_in_sample(items)


def test_what_is_drawn_depends_on_the_names_and_nothing_else() -> None:
    """Not on their order, and not on the process, as `hash` does."""
    names = [f"case {number}" for number in range(10)]
    code = f"from tests.helpers.sample import drawn; print(sorted(drawn({names[::-1]}, 3)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{sorted(drawn(names, 3))}\n"
    assert len(drawn(names, 3)) == 4
    assert drawn(["only"], 3) == {"only"}


def test_a_further_name_changes_at_most_one_of_those_drawn() -> None:
    names = [f"case {number}" for number in range(30)]
    for count in range(1, 30):
        assert len(drawn(names[:count], 3) - drawn(names[: count + 1], 3)) <= 1
