"""Chooses the cases of long matrices that run on a day.

`pytest --day N` runs a part of the cases of each test with the marker `rotates`, another part each day. Without
`--day`, all cases run.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from itertools import count
from typing import Any

import pytest

from tests.helpers.schedule import file_of


def left_out(items: Iterable[pytest.Item], day: int, *, all_cases: bool = True) -> list[pytest.Item]:
    """Returns the tests that do not run on a day.

    `rotates(days=3)` deals the cases of a test into three parts. Tests of one file that have the same cases run the
    same ones on a day, so that they can share what their fixtures make. The tests of a file that have no cases are
    dealt as if they were the cases of one test. Files start at different parts, which spreads the work over the days.
    With `part=0`, a test or a case is in the first part, with those of other files that say so too.

    Args:
        items: The collected tests, in the order of their files.
        day: The number of the day.
        all_cases: Whether each test has all of its cases. If not, the names in `always` are not checked.

    Raises:
        pytest.UsageError: if `always` names a case that its test does not have.
    """
    positions: dict[str, count[int]] = {}
    missing: dict[str, set[str]] = {}
    found = []
    for item in items:
        marker = item.get_closest_marker("rotates")
        if marker is None:
            continue
        file = file_of(item.nodeid)
        dealt = item.nodeid.partition("[")[0] if case_of(item) else file
        always = marker.kwargs.get("always", ())
        missing.setdefault(dealt, set(always)).discard(case_of(item))
        if case_of(item) in always:
            continue
        part = marker.kwargs.get("part")
        if part is None:
            part = next(positions.setdefault(dealt, count(zlib.crc32(file.encode()))))
        if (part - day) % marker.kwargs["days"]:
            found.append(item)
    if all_cases and (
        wrong := [f"{test}: there is no case {case!r}" for test, cases in missing.items() for case in sorted(cases)]
    ):
        raise pytest.UsageError("\n".join(wrong))
    return found


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
