"""Reads of a model's sources that no key covers. A plug-in refuses or notes them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from etbuild import plugins


class Guard(Protocol):
    """The interface of the plug-in."""

    def watched_reads(
        self,
        sources: Mapping[str, str],
        data: Iterable[Path],
        packages: set[str],
        given: Iterable[Path] | None = None,
    ) -> AbstractContextManager[None]:
        """See the function of this module."""

    def ending_process(self) -> AbstractContextManager[None]:
        """See the function of this module."""


def watched_reads(
    sources: Mapping[str, str], data: Iterable[Path], packages: set[str], given: Iterable[Path] | None = None
) -> AbstractContextManager[None]:
    """Within this context, refuses reads of the sources that no key covers.

    Args:
        sources: The import paths of the sources, by the file name of their code.
        data: Other files that the sources may open.
        packages: The top-level names that their import statements name.
        given: What the driver reads for the step, besides its own directories. None: the process continues afterwards,
            so the kernel must not refuse anything.

    Raises:
        BuildError: The sources have opened something else, even if they continued without it.
    """
    return guard().watched_reads(sources, data, packages, given)


def ending_process() -> AbstractContextManager[None]:
    """Says that this process ends after this context. So while reads are watched, the kernel may refuse reads that no
    key covers, for the rest of the process and for its children. Adds a hint about that to other errors."""
    return guard().ending_process()


@functools.cache
def guard() -> Guard:
    """The plug-in. Call it before processes fork: they share what it imports."""
    found: Guard = plugins.load("guard", "reads")
    return found


collecting: list[set[str]] = []
"""The collected reads of each active `unkeyed`, from the outermost to the innermost."""


@contextlib.contextmanager
def unkeyed() -> Iterator[set[str]]:
    """Collects descriptions of allowed reads by sources whose result may change in the next build.

    Prints a note for each. The result of the build is then not cached.
    """
    reasons: set[str] = set()
    collecting.append(reasons)
    try:
        yield reasons
    finally:
        collecting.pop()


def add_unkeyed(found: set[str]) -> None:
    """Adds reads that another process has collected with `unkeyed`."""
    for reasons in collecting:
        reasons |= found
