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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

TYPE_CHECKING = False  # importing `typing` takes 2 ms of each command
if TYPE_CHECKING:
    from typing import Any, Self

INTERRUPTED = 130
"""The exit code of a command that a signal has ended."""

DocumentPath = tuple[str | int, ...]

ATTRIBUTES_OF_SOURCES = ("srcs", "deps")
"""The attributes of a build rule that list sources."""

COMPARED = 20  # this many unknown words are compared with the known ones
_NEAR = 0.8  # from this similarity on, a word is taken for a misspelt other one
_LISTED = 60  # this many known words are listed
_OPTION = re.compile(r"`(--[a-z-]+)(?:[ =]([^`]+))?`|(?<![\w`-])(--[a-z-]+)")
_LONG = 100  # this many characters of a key are shown


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

    Its text may quote files from other people. As a string, it contains no character that controls a terminal. All
    lines after the first are indented, so that a quoted line does not look like a separate message.

    Attributes:
        message: What is wrong.
        path: The place in the manifest.
        hint: What to write instead.
        at_key: The key at `path` is wrong, not its value.
        position: The position in the file. `located` fills it in from `path` if it is known.
        attributes: The attributes of a build rule that may list what is missing.
    """

    message: str
    path: DocumentPath | None = None
    hint: str | None = None
    position: Position | None = None
    at_key: bool = False
    attributes: tuple[str, ...] = ()

    def in_rule(self, target: str, command: str = "etbuild", options: Mapping[str, str] | None = None) -> Problem:
        """The same problem for a build rule, with a hint which attribute of its target may list what is missing.

        Args:
            target: The label of the target.
            command: The words that run the driver in the build system, in place of `etbuild`.
            options: The attributes of the target that the rule made options from, by option.
        """

        def named(found: re.Match[str]) -> str:
            attribute = (options or {}).get(found[1] or found[3])
            return found[0] if attribute is None else f"`{attribute}`" + (f" `{found[2]}`" if found[2] else "")

        parts = [_OPTION.sub(named, self.hint).replace("`etbuild ", f"`{command} ")] if self.hint else []
        if self.attributes:
            names = " or ".join(f"`{attribute}`" for attribute in self.attributes)
            parts.append(f"to declare it, list it under {names} of {target}")
        return replace(self, message=_OPTION.sub(named, self.message), hint="\n".join(parts) or None)

    def located(self, positions: Positions) -> Problem:
        """The same problem with a position: its own, or else that of its path or of the nearest enclosing path."""
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
        """The problem without its hint, for a part of another message."""
        return printable(str(replace(self, hint=None)))


@dataclass
class EtbuildError(Exception):
    """Base of the errors that end a command without a traceback. `exit_code` is the exit code of the process."""

    problems: list[Problem] = field(default_factory=list)

    exit_code = 1

    @classmethod
    def at(
        cls,
        where: DocumentPath | Position,
        message: str,
        hint: str | None = None,
        *,
        at_key: bool = False,
        attributes: tuple[str, ...] = (),
    ) -> Self:
        """An error of one problem at a place.

        Args:
            where: The path in the manifest, or the position in a text file where there is no path.
            message: What is wrong.
            hint: What to write instead.
            at_key: The key at the path is wrong, not its value.
            attributes: The attributes of a build rule that may list what is missing.
        """
        path, position = (None, where) if isinstance(where, Position) else (where, None)
        return cls([Problem(message, path, hint, position, at_key, attributes)])

    @classmethod
    def of(cls, message: str, hint: str | None = None) -> Self:
        """An error of one problem that is not about a place in the manifest. The message names the file or option."""
        return cls([Problem(message, hint=hint)])

    @classmethod
    def raise_if(cls, problems: list[Problem]) -> None:
        """Raises an error of these problems, if there are any."""
        if problems:
            raise cls(problems)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)

    def in_rule(self, *given: Any, **rule: Any) -> EtbuildError:
        """The same error for a build rule. The arguments are those of `Problem.in_rule`."""
        return type(self)([problem.in_rule(*given, **rule) for problem in self.problems])

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
    """Checks that the current directory exists. PyTorch ends a process that imports it in a removed directory.

    Raises:
        InputError: The directory was removed.
    """
    try:
        os.getcwd()  # noqa: PTH109 - this module does not import pathlib
    except FileNotFoundError:
        raise InputError.of("the current directory was removed", "go to another directory") from None


class Leaving(BaseException):
    """Base of the exceptions that end one of our processes, or its task. No code turns them into an error."""


class Elsewhere(Leaving):
    """Another process has run the command to its end, with this exit code."""

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
    """Whether a text contains a control character, a line end, a direction mark, or half of a surrogate pair.

    Other invisible characters, such as the joiners of Persian, are part of ordinary names.
    """
    return _STEERING.search(text) is not None


def printable(text: str) -> str:
    """Escapes each character that could move a cursor, begin a line, or change the order of the text: control
    characters, line ends, direction marks, and characters without a visible form."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(ord(char)) for char in text)


def _escape(code: int) -> str:
    named = {9: "\\t", 10: "\\n", 13: "\\r"}.get(code)
    return named or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")


def counted(number: int | str, what: str) -> str:
    """A number with its noun, such as `1 entry` or `2 entries`."""
    return f"{number} {what}" if str(number) == "1" else f"{number} {re.sub('(?<![aeiou])y$', 'ie', what)}s"


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


def is_near(word: str, known: Iterable[str]) -> bool:
    """Whether a known word is so similar that no other hint is needed."""
    return bool(difflib.get_close_matches(word, [*known], n=1, cutoff=_NEAR))


def unknown(given: Iterable[str], known: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    """The words that are not known, each with a hint. Only the first few get one, because both lists may be long."""
    words = set(known)
    for number, word in enumerate(word for word in given if word not in words):
        yield word, did_you_mean(word, words) if number < COMPARED else None
