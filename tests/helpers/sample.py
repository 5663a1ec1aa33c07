"""Chooses the cases of a run that has a limited time: the same ones on every day and on every machine.

They depend on the names of the cases and on the seconds in `tests/seconds.json`.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import pytest

from tests.helpers.schedule import file_of, seconds_of

SECONDS = 900.0
"""The seconds of tests in a run of `make test`, on one processor, without `tests/unit` and `tests/fuzz`."""
OF_CHANGE = 2 / 3
"""The largest part of them for the tests that are about the change."""


def chosen(
    items: Collection[pytest.Item],
    whole: Collection[str],
    *,
    seconds: float = SECONDS,
    seconds_of: Callable[[pytest.Item], float] = seconds_of,
) -> set[pytest.Item]:
    """Returns the cases that run: those of the files that are about a change, and a sample of the others.

    If all cases of the files about the change take too long, they are a sample too.

    Args:
        items: The cases of the files that a change can reach.
        whole: The files that are about the change.
        seconds: How long the cases that run may take.
        seconds_of: How long a case takes.
    """
    about = [item for item in items if file_of(item.nodeid) in whole]
    others = [item for item in items if file_of(item.nodeid) not in whole]
    most = seconds * OF_CHANGE
    first = set(about) if sum(map(seconds_of, about)) <= most else sample(about, most, seconds_of)
    return first | sample(others, seconds - sum(map(seconds_of, first)), seconds_of)


def sample(
    items: Iterable[pytest.Item], seconds: float, seconds_of: Callable[[pytest.Item], float]
) -> set[pytest.Item]:
    """Returns cases that take so many seconds together.

    Each file gets about the same time, for its shortest cases. Cases of several tests with the same parameters are
    taken together, so that they can share what their fixtures make.

    The marker `sample` is for exceptions. `always=True` takes each case of a test, and `always=["a"]` those with these
    names. `never=True` takes none. With `part` and `parts`, a case can be taken if its part was drawn: the same one in
    each file that names the same parts.

    Raises:
        pytest.UsageError: if `always` names a case that its test does not have.
    """
    taken = set[pytest.Item]()
    draws: dict[str, dict[str, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        marked = _marked(item)
        always = marked.get("always", ())
        if always is True or (always and case_of(item) in always):
            taken.add(item)
        elif not marked.get("never") and ("part" not in marked or marked["part"] == drawn(marked["parts"])):
            name = case_of(item) or item.nodeid
            draws[file_of(item.nodeid)][marked.get("part", name)].append(item)
    left = seconds - sum(map(seconds_of, taken))
    for needed, draw in _in_turn(draws, seconds_of):
        if needed <= left:
            left -= needed
            taken.update(draw)
    return taken


def check_names(items: Iterable[pytest.Item]) -> None:
    """Checks that each test has the cases that its marker names.

    Raises:
        pytest.UsageError: if it has not.
    """
    missing: dict[str, set[str]] = {}
    for item in items:
        always = _marked(item).get("always", ())
        if always is not True:
            missing.setdefault(item.nodeid.partition("[")[0], set(always)).discard(case_of(item))
    if wrong := [f"{test}: there is no case {case!r}" for test, cases in missing.items() for case in sorted(cases)]:
        raise pytest.UsageError("\n".join(wrong))


def _in_turn(
    draws: dict[str, dict[str, list[pytest.Item]]], seconds_of: Callable[[pytest.Item], float]
) -> Iterator[tuple[float, list[pytest.Item]]]:
    """The draws of all files with their seconds, in an order in which each file has had about the same time."""
    ranked = []
    for file, named in draws.items():
        costs = sorted(
            ((sum(map(seconds_of, draw)), _hash(f"{file}::{name}"), draw) for name, draw in named.items()),
            key=lambda each: each[:2],
        )
        times = accumulate(cost for cost, _, _ in costs)
        ranked += [(time, *each) for time, each in zip(times, costs, strict=True)]
    yield from ((cost, draw) for _, cost, _, draw in sorted(ranked, key=lambda each: each[:3]))


def drawn(names: Iterable[str]) -> str:
    """Returns one of some names. A further name changes it rarely."""
    return min(names, key=_hash)


def _hash(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def of_part(part: str, parts: Sequence[str]) -> pytest.MarkDecorator:
    """The marker of a test or a case that belongs to one of several parts, of which a sample has one."""
    return pytest.mark.sample(part=part, parts=parts)


def _marked(item: pytest.Item) -> dict[str, Any]:
    marker = item.get_closest_marker("sample")
    return dict(marker.kwargs) if marker else {}


def case_of(item: pytest.Item) -> str:
    """Returns the identifier of a test's parameters; an empty string if it has none."""
    return item.callspec.id if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ""


def values_that_run(request: pytest.FixtureRequest, parameter: str) -> set[Any]:
    """Returns the values of a parameter in those tests of a fixture's file that this run selected.

    With it, a fixture that makes something for each value makes nothing in vain.
    """
    here = [item for item in request.session.items if item.path == request.path and case_of(item)]
    chosen = [item.callspec.params for item in here if isinstance(item, pytest.Function)]
    return {values[parameter] for values in chosen if parameter in values}
