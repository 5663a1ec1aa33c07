"""Shows many problems of one kind as few lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from etbuild.errors import Problem, counted

_SHOWN = 10  # this many problems of one kind are shown
_SHOWN_AT_ONE_PLACE = 3  # if more problems of one kind are at one place, only the first is shown
_NAMED = 5  # this many of the other problems are named


def listed(names: Sequence[str], most: int = _NAMED) -> str:
    """Names in backquotes for a message: "`a`, `b` and 5 more".

    Args:
        names: The names.
        most: The number of names to show.
    """
    shown = [f"`{name}`" for name in names[:most]]
    if len(names) > most:
        return f"{', '.join(shown)} and {len(names) - most} more"
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))


@dataclass(frozen=True)
class _Row:
    """A problem to show. `rank` is its place in the order. It represents `count` problems."""

    rank: int
    problem: Problem
    count: int


def folded(problems: Sequence[Problem]) -> Iterator[Problem]:
    """The problems to show, in their order.

    Problems are of one kind if their messages differ only in quoted names and in numbers. If more than three problems
    of one kind are at one place, only the first is shown, and it names some of the others. At most ten problems of one
    kind are shown; one more line gives the number of the others.
    """
    by_place: dict[tuple[str, object], list[_Row]] = {}
    for rank, problem in enumerate(problems):
        place = problem.position or problem.path
        by_place.setdefault((_kind(problem.message), place), []).append(_Row(rank, problem, 1))
    by_kind: dict[str, list[_Row]] = {}
    for (kind, _), rows in by_place.items():
        by_kind.setdefault(kind, []).extend(_fold_place(rows))
    shown = [row for rows in by_kind.values() for row in _fold_kind(rows)]
    yield from (row.problem for row in sorted(shown, key=lambda row: row.rank))


def _fold_place(rows: list[_Row]) -> list[_Row]:
    """The rows of one kind at one place. Many rows become one."""
    if len(rows) <= _SHOWN_AT_ONE_PLACE:
        return rows
    return [_Row(rows[0].rank, _first_of([row.problem for row in rows]), len(rows))]


def _fold_kind(rows: list[_Row]) -> list[_Row]:
    """The rows of one kind. If there are many, returns the first ten and one that counts the others."""
    rows = sorted(rows, key=lambda row: row.rank)
    if len(rows) <= _SHOWN:
        return rows
    first, count = rows[_SHOWN], sum(row.count for row in rows[_SHOWN:])
    message = f"{counted(count, 'more such problem')}, the first of them here"
    return [
        *rows[:_SHOWN],
        _Row(first.rank, Problem(message, first.problem.path, position=first.problem.position), count),
    ]


def _first_of(alike: Sequence[Problem]) -> Problem:
    """The first of several problems of one kind at one place, with a hint that names some of the others."""
    first, *others = alike
    own = set(_QUOTED.findall(first.message))
    named = [next((name for name in _QUOTED.findall(other.message) if name not in own), "") for other in others]
    names = list(dict.fromkeys(name.strip("`") for name in named if name))
    count = f"{len(others)} more such problems here"
    more = f"{count}: {listed(names)}" if len(names) == len(others) else count
    return replace(first, hint=f"{first.hint}\n{more}" if first.hint else more)


_QUOTED = re.compile(r"`[^`]*`")


def _kind(message: str) -> str:
    """The message without the parts that differ between problems of one kind: quoted names, lists, and numbers."""
    return re.sub(r"`[^`]*`|\"[^\"]*\"|\[[^\]]*\]|\b\d[\d.,]*", "", message)
