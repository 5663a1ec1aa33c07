"""Line numbers for errors that are found after the manifest is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from etbuild.errors import DocumentPath, EtbuildError, Positions, Problem

_DEFAULTS: dict[str | int, DocumentPath] = {"memory_planning": ("executorch", "memory_planning")}
"""For a key of a method, the place in the manifest that sets it for all methods."""


@contextmanager
def locating(positions: Positions) -> Iterator[None]:
    """Returns a context manager that gives errors the positions of a manifest's values, as `located` does."""
    try:
        yield
    except EtbuildError as error:
        raise located(error, positions) from error


def located(error: EtbuildError, positions: Positions) -> EtbuildError:
    """The error with the positions of its problems.

    If a method inherits the value, the position is the place that sets it for all methods.

    Args:
        error: The error. Its paths are those of the plan, in which each method has all its values.
        positions: The positions of the manifest's values, by path.
    """
    return type(error)([_at_default(problem, positions) for problem in error.problems]).located(positions)


def _at_default(problem: Problem, positions: Positions) -> Problem:
    path = problem.path or ()
    method = path[:2]
    if path == (*method, "entry") and method[:1] == ("methods",) and path not in positions and method in positions:
        return replace(problem, path=method)  # the entry is the name of the method
    if path[:1] != ("methods",) or len(path) < 4 or path in positions or path[2] not in _DEFAULTS:
        return problem
    default = (*_DEFAULTS[path[2]], *path[3:])
    return replace(problem, path=default) if default in positions else problem
