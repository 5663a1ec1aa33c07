"""Decides which worker of pytest-xdist runs which tests, and in which order."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

SECONDS = Path(__file__).parents[1] / "seconds.json"
"""Seconds by test file, measured by `pytest --update-seconds`. They order the files, and tell which are short."""
SHORT_SECONDS = 5.0
_UNKNOWN = math.inf  # an unmeasured file may be long, so it starts first


class LongestFirst(LoadScopeScheduling):
    """Gives whole files to workers, because the tests of a file share fixtures. Keeps the order of the collection."""

    def _split_scope(self, nodeid: str) -> str:
        return file_of(nodeid)


def file_of(nodeid: str) -> str:
    """Returns the file of a test, relative to the repository."""
    return nodeid.partition("::")[0]


def sort_longest_first(items: list[pytest.Item]) -> None:
    """Sorts tests by the seconds of their file, longest first. Within a file they keep their order.

    The shortest files start last, so that no worker runs a long file at the end.
    """
    items.sort(key=lambda item: -_seconds().get(file_of(item.nodeid), _UNKNOWN))


def is_short(file: str) -> bool:
    """Whether the tests of a file take a few seconds together, of which a sample would save little."""
    return _seconds().get(file, _UNKNOWN) < SHORT_SECONDS


@functools.cache
def _seconds() -> dict[str, float]:
    measured: dict[str, float] = json.loads(SECONDS.read_text("utf-8"))
    return measured


class Stopwatch:
    """Adds up the seconds of each file, and writes them to `SECONDS` for the files that ran."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """pytest calls this for the setup, the call and the teardown of each test."""
        file = file_of(report.nodeid)
        self.seconds[file] = self.seconds.get(file, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        """pytest calls this after the last test."""
        known: dict[str, float] = json.loads(SECONDS.read_text("utf-8")) if SECONDS.exists() else {}
        measured = {file: round(seconds, 1) for file, seconds in self.seconds.items()}
        kept = {file: seconds for file, seconds in known.items() if Path(SECONDS.parents[1], file).exists()}
        merged = sorted({**kept, **measured}.items(), key=lambda entry: (-entry[1], entry[0]))
        SECONDS.write_text(json.dumps(dict(merged), indent=1) + "\n", "utf-8")
