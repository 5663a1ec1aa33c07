"""Errors that the user can fix. Any other exception is a bug of the driver and keeps its traceback.

An error of one problem is raised with `at` or `of`:

    raise InputError.at(("methods", "forward"), "what is wrong", "what to write instead")
    raise BuildError.of("what is wrong", "what to do")  # it is not about a place in the manifest

Code that finds several problems collects them first: `raise InputError(problems)`. `foreign_errors` turns exceptions of
other people's code into these errors.
"""

from __future__ import annotations

import difflib
import functools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self

INTERRUPTED = 130
"""The exit code of a command that a signal has ended."""

DocumentPath = tuple[str | int, ...]

_COMPARED = 20  # of unknown words, so many are compared with all that are known
_LISTED = 60  # of known words, so many are listed
_LONG = 100  # of a key, so many characters are shown
_SHOWN = 10  # so many problems of one kind are shown
_SHOWN_AT_ONE_PLACE = 3  # so many problems of one kind at one place are shown; of more, only the first
_NAMED = 5  # so many of the others are named


@dataclass(frozen=True)
class Position:
    """A place in a text file; `line` and `column` count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{printable(self.file)}:{self.line}:{self.column}"


Positions = Mapping[DocumentPath, Position]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    What it quotes may come from files of others: as text it has no character that a terminal would obey, and a line
    of its message that is not the first is indented, so that it looks like no message of its own.

    Attributes:
        message: What is wrong.
        path: Where in the manifest.
        hint: What to write instead.
        at_key: It is the key at `path` that is wrong, not the value.
        position: Where in the file; filled in from `path` where it is known.
    """

    message: str
    path: DocumentPath | None = None
    hint: str | None = None
    position: Position | None = None
    at_key: bool = False

    def located(self, positions: Positions) -> Problem:
        """The same problem with its position, looked up by path (or by the nearest enclosing one) unless it has one."""
        if self.position is not None or self.path is None:
            return self
        for length in range(len(self.path), -1, -1):
            position = positions.get(self.path[:length])
            if position is not None:
                return replace(self, position=position)
        return self

    def __str__(self) -> str:
        parts = [str(self.position)] if self.position else []
        if self.path:
            parts.append(format_path(self.path))
        first, *more = ": ".join([*parts, self.message]).expandtabs(4).split("\n")
        if self.hint:
            more += self.hint.expandtabs(4).split("\n")
        return "\n".join([printable(first), *(f"    {printable(line.removeprefix('    '))}" for line in more)])

    def on_one_line(self) -> str:
        """The problem without its hint, as a part of another message."""
        return printable(str(replace(self, hint=None)))


@dataclass
class EtbuildError(Exception):
    """Base of the errors that end a command without a traceback. `exit_code` is the exit code of the process."""

    problems: list[Problem] = field(default_factory=list)

    exit_code = 1

    @classmethod
    def at(cls, where: DocumentPath | Position, message: str, hint: str | None = None, *, at_key: bool = False) -> Self:
        """An error of one problem at a place.

        Args:
            where: The path in the manifest, or the position in a text file where there is no path.
            message: What is wrong.
            hint: What to write instead.
            at_key: The key at the path is wrong, not its value.
        """
        path, position = (None, where) if isinstance(where, Position) else (where, None)
        return cls([Problem(message, path, hint, position, at_key)])

    @classmethod
    def of(cls, message: str, hint: str | None = None) -> Self:
        """An error of one problem that is not about a place in the manifest.

        Args:
            message: What is wrong. It names the file or the option.
            hint: What to do.
        """
        return cls([Problem(message, hint=hint)])

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)

    def located(self, positions: Positions) -> EtbuildError:
        """The same error with positions filled in, in the order of the file."""
        problems = [problem.located(positions) for problem in self.problems]
        problems.sort(key=lambda p: (p.position.line, p.position.column) if p.position else (0, 0))
        return type(self)(problems)


class InputError(EtbuildError):
    """The manifest, a declared input or the command line is wrong."""

    exit_code = 2


class BuildError(EtbuildError):
    """The model could not be exported, lowered or written."""

    exit_code = 1


class CheckError(EtbuildError):
    """The program is correct, but it breaks a limit of the manifest's `checks`."""

    exit_code = 3


def check_current_directory() -> None:
    """Looks for the current directory. PyTorch ends a process that imports it where that is missing.

    Raises:
        InputError: The directory was removed.
    """
    try:
        os.getcwd()  # noqa: PTH109 - this module does without pathlib
    except FileNotFoundError:
        raise InputError.of("the current directory was removed", "go to another directory") from None


class Elsewhere(BaseException):
    """The command was run to its end by another process, with this exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def format_path(path: DocumentPath) -> str:
    """`("methods", "f", "example_inputs", 0)` as `methods.f.example_inputs[0]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            shown = printable(part if len(part) <= _LONG else f"{part[:_LONG]}...")
            text += f".{shown}" if text else shown
    return text


_STEERING = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]")


def steers(text: str) -> bool:
    """Whether a text holds a control character, a line end, a mark of direction, or half of a surrogate pair.

    Other characters without a form of their own, such as the joiners of Persian, are part of ordinary names.
    """
    return _STEERING.search(text) is not None


def printable(text: str) -> str:
    """The text with an escape in place of each character that could move a cursor, begin a line, or turn the order
    of what is read: control characters, line ends, marks of direction, and what has no form."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(ord(char)) for char in text)


def _escape(code: int) -> str:
    named = {9: "\\t", 10: "\\n", 13: "\\r"}.get(code)
    return named or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")


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
    """A problem to show. `rank` is its place in the order; `count` is the number of problems that it stands for."""

    rank: int
    problem: Problem
    count: int


def folded(problems: Sequence[Problem]) -> Iterator[Problem]:
    """The problems to show, in their order.

    Problems are of one kind if their messages differ only in quoted names and in numbers. If more than three of a kind
    are at one place, the first stands for all and names some of the others. Of one kind, ten are shown, and then how
    many more there are.
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
    """The rows of one kind at one place; of many, one."""
    if len(rows) <= _SHOWN_AT_ONE_PLACE:
        return rows
    return [_Row(rows[0].rank, _first_of([row.problem for row in rows]), len(rows))]


def _fold_kind(rows: list[_Row]) -> list[_Row]:
    """The rows of one kind; of many, the first ten and one that counts the others."""
    rows = sorted(rows, key=lambda row: row.rank)
    if len(rows) <= _SHOWN:
        return rows
    first, count = rows[_SHOWN], sum(row.count for row in rows[_SHOWN:])
    message = f"{count} more such problem{'s' if count > 1 else ''}, the first of them here"
    return [
        *rows[:_SHOWN],
        _Row(first.rank, Problem(message, first.problem.path, position=first.problem.position), count),
    ]


def _first_of(alike: Sequence[Problem]) -> Problem:
    """The first of several problems of one kind at one place, which names some of the others."""
    first, *others = alike
    own = set(_QUOTED.findall(first.message))
    named = [next((name for name in _QUOTED.findall(other.message) if name not in own), "") for other in others]
    names = list(dict.fromkeys(name.strip("`") for name in named if name))
    count = f"{len(others)} more such problems here"
    more = f"{count}: {listed(names)}" if len(names) == len(others) else count
    return replace(first, hint=f"{first.hint}\n{more}" if first.hint else more)


_QUOTED = re.compile(r"`[^`]*`")


def _kind(message: str) -> str:
    """The message without what differs between problems of one kind: quoted names, lists, and numbers."""
    return re.sub(r"`[^`]*`|\"[^\"]*\"|\[[^\]]*\]|\b\d[\d.,]*", "", message)


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """A hint that names the nearest known word and lists all of them."""
    return _did_you_mean(word, tuple(sorted(known)))


@functools.lru_cache(maxsize=1024)
def _did_you_mean(word: str, words: tuple[str, ...]) -> str | None:
    if not words:
        return None
    near = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    if not near:
        near = [w for w in words if w.lower() == word.lower()]
    more = f", and {len(words) - _LISTED} more" if len(words) > _LISTED else ""
    listing = f"known: {', '.join(words[:_LISTED])}{more}"
    return f"did you mean `{near[0]}`? ({listing})" if near else listing


def unknown(given: Iterable[str], known: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    """Those of some words that are not known, each with a hint. Both may be long: only the first few are compared."""
    words = set(known)
    for number, word in enumerate(word for word in given if word not in words):
        yield word, did_you_mean(word, words) if number < _COMPARED else None
