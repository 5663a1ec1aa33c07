"""The cases of a run that has a limited time: those about the change first, and the same ones on each machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.helpers.sample import check_names, chosen, drawn, sample

pytest_plugins = ["pytester"]

TESTS = """
import pytest

PARTS = ("left", "right")

@pytest.mark.sample(always=["a"])
@pytest.mark.parametrize("name", "abc")
def test_letters_100(name): ...

@pytest.mark.sample(always=True)
@pytest.mark.parametrize("name", "ab")
def test_all_letters_1(name): ...

@pytest.mark.sample(never=True)
def test_never_0(): ...

@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.sample(part=name, parts=PARTS)) for name in PARTS
])
def test_parts_0(name): ...

@pytest.mark.sample(part="left", parts=PARTS)
def test_left_0(): ...

@pytest.mark.sample(part="right", parts=PARTS)
def test_right_0(): ...

@pytest.mark.parametrize("number", range(8))
def test_numbers_2(number): ...

@pytest.mark.parametrize("number", range(8))
def test_the_same_numbers_3(number): ...

def test_one_4(): ...

def test_two_40(): ...
"""
ALWAYS = {"test_letters_100[a]", "test_all_letters_1[a]", "test_all_letters_1[b]"}


def seconds_of(item: pytest.Item) -> float:
    """The seconds of these tests are in their names."""
    return float(item.name.partition("[")[0].rpartition("_")[2])


@pytest.fixture
def items(pytester: pytest.Pytester) -> list[pytest.Item]:
    pytester.makeini("[pytest]\nmarkers =\n  sample")
    return pytester.getitems(TESTS)


def names(items: set[pytest.Item]) -> set[str]:
    return {item.name for item in items}


def taken(items: list[pytest.Item], seconds: float) -> set[str]:
    return names(sample(items, seconds, seconds_of))


def test_what_is_always_there_needs_no_time(items: list[pytest.Item]) -> None:
    assert taken(items, 0) == ALWAYS


def test_the_shortest_cases_are_taken_as_long_as_there_is_time(items: list[pytest.Item]) -> None:
    short = taken(items, 102 + 4)
    assert short - taken(items, 102) == {"test_one_4"}
    assert len(taken(items, 102 + 4 + 3 * 5)) == len(short) + 3 * 2
    assert names(set(items)) - taken(items, 10_000) == {"test_never_0"} | other_part(items)


def other_part(items: list[pytest.Item]) -> set[str]:
    left, right = {"test_parts_0[left]", "test_left_0"}, {"test_parts_0[right]", "test_right_0"}
    found = taken(items, 102) & (left | right)
    assert found in (left, right)
    return right if found == left else left


def test_the_same_cases_of_two_tests_are_taken(items: list[pytest.Item]) -> None:
    numbers = {name.replace("the_same_", "").replace("_3", "_2") for name in taken(items, 102 + 4 + 3 * 5)}
    assert len([name for name in numbers if name.startswith("test_numbers")]) == 3


def test_each_file_has_the_same_time(pytester: pytest.Pytester) -> None:
    for name, cases in (("first", "abcdef"), ("second", "ab"), ("third", "abc")):
        pytester.makepyfile(
            **{
                f"test_{name}": f"""
            import pytest
            @pytest.mark.parametrize("name", {cases!r})
            def test_1(name): ...
        """
            }
        )
    several, _ = pytester.inline_genitems()
    files = [item.nodeid.partition("::")[0] for item in sample(several, 8, seconds_of)]
    assert sorted(files) == ["test_first.py"] * 3 + ["test_second.py"] * 2 + ["test_third.py"] * 3


def test_what_is_about_the_change_is_whole_if_there_is_time(items: list[pytest.Item]) -> None:
    whole = {items[0].nodeid.partition("::")[0]}
    every = sum(map(seconds_of, items))
    assert chosen(items, whole, seconds=every * 1.5, seconds_of=seconds_of) == set(items)
    assert names(chosen(items, whole, seconds=159, seconds_of=seconds_of)) == taken(items, 106)
    assert names(chosen(items, (), seconds=106, seconds_of=seconds_of)) == taken(items, 106)


def test_a_case_that_is_not_there_is_an_error(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers =\n  sample")
    with pytest.raises(pytest.UsageError, match=r"test_letters_100: there is no case 'z'"):
        check_names(pytester.getitems(TESTS.replace('["a"]', '["z"]')))


def test_what_is_drawn_depends_on_the_names_and_nothing_else() -> None:
    """Not on their order, and not on the process, as `hash` does."""
    several = [f"case {number}" for number in range(10)]
    code = f"from tests.helpers.sample import drawn; print(drawn({several[::-1]}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{drawn(several)}\n"
