"""What `etbuild watch` has built so far: a line for each program, a drawing, and the best one."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from etbuild.errors import printable
from etbuild.publishing.artifacts import whole_directory
from etkit import svg
from etkit.local.agreement import ratio
from etkit.tables import size

BEST = "best"
"""The directory of the best program, in the directory of all."""
_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 640, 110, 70, 40, 56
_EXACT = 200.0  # a drawing shows a program without any error at so many decibels
_RELOAD_SECONDS = 5


@dataclass(frozen=True)
class Entry:
    """A program that was built.

    Attributes:
        name: Its name.
        key: Its key.
        seconds: How long the build took.
        bytes: The size of the program and its named data.
        decibels: How near it is to PyTorch; infinite if nothing differs, None if it was not compared.
        files: Its files.
        score: The value by which the best one is kept; None if it has none.
    """

    name: str
    key: str
    seconds: float
    bytes: int
    decibels: float | None
    files: Sequence[Path]
    score: float | None = None


@dataclass(frozen=True)
class Score:
    """What makes a program the best: the name of the value, and whether less of it is better."""

    name: str
    falls: bool


class History:
    """The programs of a watch, in the order in which they were built.

    Args:
        directory: The directory of the programs.
        score: What makes one the best; None: the best one is not kept.
        page: The page with the drawings, which is written again for each program; None: no page.
    """

    def __init__(self, directory: Path, score: Score | None, page: Path | None) -> None:
        self._directory, self._score, self._page = directory, score, page
        self._keys: dict[str, str] = {}
        self.entries: list[Entry] = []
        self.best: Entry | None = None

    def is_new(self, name: str, key: str) -> bool:
        """Whether a program is another one than the last one of this name."""
        return self._keys.get(name) != key

    def add(self, entry: Entry) -> str:
        """Notes a program, keeps it if it is the best one, and draws. Returns its line."""
        self._keys[entry.name] = entry.key
        self.entries.append(entry)
        said = [entry.name, f"{entry.seconds:.1f} s", size(entry.bytes)]
        said += [ratio(entry.decibels)] if entry.decibels is not None else []
        if self._score is not None and entry.score is not None:
            said.append(f"{self._score.name} {entry.score:.6g}")
            if not math.isfinite(entry.score):
                said.append("which is no finite number, so it is not kept as the best")
            elif self._is_best(entry):
                self._keep(entry)
                said.append("the best so far")
        if self._page is not None:
            from etbuild.publishing.artifacts import replace

            replace(self._page, self.html().encode())
        return printable(", ".join(said))

    def html(self) -> str:
        """The page: drawings of all values over the programs. A browser reads it again every few seconds."""
        drawn = "".join(self._drawings())
        names = "".join(f"<li>{escape(printable(each.name))}</li>" for each in self.entries)
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>etbuild watch</title>'
            f'<meta http-equiv="refresh" content="{_RELOAD_SECONDS}"></head>'
            f"<body><h1>etbuild watch</h1>{drawn}<ol>{names}</ol></body></html>\n"
        )

    def _is_best(self, entry: Entry) -> bool:
        if self.best is None or self.best.score is None or self._score is None or entry.score is None:
            return True
        return entry.score < self.best.score if self._score.falls else entry.score > self.best.score

    def _keep(self, entry: Entry) -> None:
        """Copies the files of a program into the directory of the best one, in place of the earlier one."""
        self.best = entry
        with whole_directory(self._directory / BEST) as staged:
            for file in entry.files:
                target = staged / file.relative_to(self._directory)
                target.parent.mkdir(parents=True, exist_ok=True)
                if file.is_dir():
                    shutil.copytree(file, target)
                else:
                    shutil.copyfile(file, target)

    def _drawings(self) -> Iterator[str]:
        """Yields an image: a panel for each value that a program has."""
        values: dict[str, tuple[list[float | None], Callable[[float], str]]] = {
            "seconds": ([each.seconds for each in self.entries], lambda value: f"{value:.1f} s"),
            "size": ([float(each.bytes) for each in self.entries], lambda value: size(int(value))),
            "compared with PyTorch": (
                [None if each.decibels is None else min(each.decibels, _EXACT) for each in self.entries],
                lambda value: f"{value:.0f} dB",
            ),
        }
        if self._score is not None and self._score.name != "size":
            values[self._score.name] = [each.score for each in self.entries], lambda value: f"{value:.4g}"
        finite = {name: ([*map(_finite, known)], text) for name, (known, text) in values.items()}
        shown = {name: each for name, each in finite.items() if any(value is not None for value in each[0])}
        body = [part for row, (name, each) in enumerate(shown.items()) for part in _panel(row, name, *each)]
        yield svg.document(_LEFT + _WIDTH + 30, _TOP + len(shown) * (_HEIGHT + _GAP), body)


def _finite(value: float | None) -> float | None:
    """The value, or None if it has no place in a drawing."""
    return value if value is not None and math.isfinite(value) else None


def _panel(row: int, name: str, values: Sequence[float | None], text: Callable[[float], str]) -> Iterator[str]:
    """Yields the parts of a panel: a point for each program, and lines between them."""
    top, known = _TOP + row * (_HEIGHT + _GAP), [value for value in values if value is not None]
    low, high = min(known), max(known)
    span = high - low or 1.0
    yield f'<rect x="{_LEFT}" y="{top}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="#ccc"/>'
    yield svg.text(_LEFT, top - 6, name)
    for value in dict.fromkeys((low, high)):
        y = top + _HEIGHT * (1 - (value - low) / span) + 4
        yield svg.text(_LEFT - 6, y, text(value), 'text-anchor="end"')
    places = [
        (_LEFT + _WIDTH * number / max(1, len(values) - 1), top + _HEIGHT * (1 - (value - low) / span))
        for number, value in enumerate(values)
        if value is not None
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    yield f'<polyline points="{line}" fill="none" stroke="{svg.COLOURS[0]}" stroke-width="2"/>'
    for x, y in places:
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{svg.COLOURS[0]}"/>'
