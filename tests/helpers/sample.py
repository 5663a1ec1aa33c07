"""Chooses the sample of a test file: the cases that run if a change can reach what the file tests, and is not about it.

The sample is drawn from the names of the cases. It is the same on every day and on every machine.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from tests.helpers.schedule import file_of

ONE_OF = 5
"""One of so many cases is in a sample, if no marker says otherwise."""


def not_in_sample(
    items: Iterable[pytest.Item], *, all_cases: bool = True, is_short: Callable[[str], bool] = lambda file: False
) -> list[pytest.Item]:
    """Returns the tests that are not in the sample of their files.

    A sample has a fifth of a file's cases, where a test without parameters is one case. The cases of several tests with
    the same parameters are taken together, so that they can share what their fixtures make.

    The marker `sample` is for long matrices: `sample(one_of=10)` takes a tenth of the cases of a test, at least one.
    `always` names further cases that are taken. `one_of=1` takes all, and `one_of=None` nothing. With `part` and
    `parts`, a case is taken if its part is, in each file that names the same parts.

    Args:
        items: The collected tests.
        all_cases: Whether each test has all of its cases. If not, the names in `always` are not checked.
        is_short: Whether a file takes so little time that all its tests without the marker are in the sample.

    Raises:
        pytest.UsageError: if `always` names a case that its test does not have.
    """
    draws: dict[tuple[str, int], dict[str, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    missing: dict[str, set[str]] = {}
    found = []
    for item in items:
        file, test, case = file_of(item.nodeid), item.nodeid.partition("[")[0], case_of(item)
        marked = _marked(item, is_short(file))
        one_of, always = marked.get("one_of", ONE_OF), marked.get("always", ())
        missing.setdefault(test, set(always)).discard(case)
        if case in always:
            continue
        if one_of is None:
            found.append(item)
        elif "part" in marked:
            if marked["part"] not in drawn(marked["parts"], one_of):
                found.append(item)
        else:
            draws[test if marked else file, one_of][f"{file}[{case}]" if case else item.nodeid].append(item)
    if all_cases and (
        wrong := [f"{test}: there is no case {case!r}" for test, cases in missing.items() for case in sorted(cases)]
    ):
        raise pytest.UsageError("\n".join(wrong))
    for (_, one_of), by_name in draws.items():
        chosen = drawn(by_name, one_of)
        found += [item for name, tests in by_name.items() if name not in chosen for item in tests]
    return found


def drawn(names: Iterable[str], one_of: int) -> set[str]:
    """Returns a part of some names, one of `one_of`, and at least one. A further name changes at most one of them."""
    ordered = sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
    return set(ordered[: math.ceil(len(ordered) / one_of)])


def of_part(part: str, parts: Sequence[str]) -> pytest.MarkDecorator:
    """The marker of a test or a case that belongs to one of several parts, of which the sample has one."""
    return pytest.mark.sample(one_of=len(parts), part=part, parts=parts)


def _marked(item: pytest.Item, is_short: bool) -> dict[str, Any]:
    """The arguments of the marker. Without it, all of a short file is taken, and what `make test-quick` runs."""
    if marker := item.get_closest_marker("sample"):
        return dict(marker.kwargs)
    return {"one_of": 1} if is_short or item.get_closest_marker("quick") else {}


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
