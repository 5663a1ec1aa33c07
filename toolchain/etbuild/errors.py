"""What goes wrong for a reason that a user can mend. Anything else is a bug of ours and keeps its traceback."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

DocumentPath = tuple[str | int, ...]


@dataclass(frozen=True)
class Position:
    """A place in a text file; `line` and `column` count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


Positions = Mapping[DocumentPath, Position]

_COMMON: dict[str | int, DocumentPath] = {"memory_planning": ("executorch", "memory_planning")}
"""By a key of a method: where the manifest says it for all methods."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

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
        common = _COMMON.get(self.path[2], ()) if self.path[:1] == ("methods",) and len(self.path) > 3 else ()
        if common and self.path not in positions and (*common, *self.path[3:]) in positions:
            return replace(self, path=(*common, *self.path[3:])).located(positions)
        for length in range(len(self.path), -1, -1):
            position = positions.get(self.path[:length])
            if position is not None:
                return replace(self, position=position)
        return self

    def __str__(self) -> str:
        parts = [str(self.position)] if self.position else []
        if self.path:
            parts.append(format_path(self.path))
        text = ": ".join([*parts, self.message])
        return text + (f"\n    {self.hint}" if self.hint else "")


@dataclass
class EtbuildError(Exception):
    """Base of the errors that end a command without a traceback. `exit_code` is the process's."""

    problems: list[Problem] = field(default_factory=list)

    exit_code = 1

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
    """The program is sound, and breaks a bound that the manifest sets."""

    exit_code = 3


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
            shown = part if part.isprintable() else json.dumps(part)
            text += f".{shown}" if text else shown
    return text


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """A hint that names the nearest known word and lists all of them."""
    words = sorted(known)
    if not words:
        return None
    near = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    if not near:
        near = [w for w in words if w.lower() == word.lower()]
    listing = f"known: {', '.join(words)}"
    return f"did you mean `{near[0]}`? ({listing})" if near else listing
