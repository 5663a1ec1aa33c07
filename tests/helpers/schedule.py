"""How long tests take, and which worker of pytest-xdist runs which of them, in which order."""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

SECONDS = Path(__file__).parents[1] / "seconds.json"
"""The mean seconds of a case of each test, by file: `pytest --update-seconds` measures them."""
_UNKNOWN = 5.0  # of a file that nobody has measured yet


class LongestFirst(LoadScopeScheduling):
    """Gives whole files to workers, because the tests of a file share fixtures. Keeps the order of the collection."""

    def _split_scope(self, nodeid: str) -> str:
        return file_of(nodeid)


def file_of(nodeid: str) -> str:
    """Returns the file of a test, relative to the repository."""
    return nodeid.partition("::")[0]


def _test_of(nodeid: str) -> str:
    """Returns the name of a test in its file, without its parameters."""
    return nodeid.partition("::")[2].partition("[")[0]


def sort_longest_first(items: list[pytest.Item]) -> None:
    """Sorts tests by the seconds of those of their file, longest first. Within a file they keep their order.

    The shortest files start last, so that no worker runs a long file at the end.
    """
    of_file: dict[str, float] = defaultdict(float)
    for item in items:
        of_file[file_of(item.nodeid)] += seconds_of(item)
    items.sort(key=lambda item: -of_file[file_of(item.nodeid)])


def seconds_of(item: pytest.Item) -> float:
    """Returns how long a case takes, as far as known: otherwise as long as the mean test of its file."""
    of_file = _seconds().get(file_of(item.nodeid), {})
    mean = sum(of_file.values()) / len(of_file) if of_file else _UNKNOWN
    return of_file.get(_test_of(item.nodeid), mean)


@functools.cache
def _seconds() -> dict[str, dict[str, float]]:
    measured: dict[str, dict[str, float]] = json.loads(SECONDS.read_text("utf-8")) if SECONDS.exists() else {}
    return measured


class Stopwatch:
    """Measures the cases that run, and writes the mean of each test to `SECONDS`. Other tests keep their seconds."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """pytest calls this for the setup, the call and the teardown of each test."""
        self.seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        """pytest calls this after the last test."""
        cases: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for nodeid, seconds in self.seconds.items():
            cases[file_of(nodeid)][_test_of(nodeid)].append(seconds)
        means = {
            file: {test: round(sum(each) / len(each), 2) for test, each in tests.items()}
            for file, tests in cases.items()
        }
        root = SECONDS.parents[1]
        kept = {file: tests for file, tests in _seconds().items() if (root / file).exists()}
        merged = {file: {**kept.get(file, {}), **means.get(file, {})} for file in sorted({*kept, *means})}
        texts = {file: (root / file).read_text("utf-8") for file in merged}
        there = {
            file: {test: tests[test] for test in sorted(tests) if test.rpartition("::")[2] in texts[file]}
            for file, tests in merged.items()
        }
        SECONDS.write_text(json.dumps(there, indent=1) + "\n", "utf-8")
