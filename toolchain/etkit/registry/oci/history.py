"""The versions of programs in a repository, with the numbers of their reports, as data and as a plot."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from functools import partial
from typing import Any

from etbuild.errors import InputError
from etkit.registry.oci import dates, facts, transfer
from etkit.registry.oci.client import NoAccess
from etkit.registry.oci.facts import Facts
from etkit.registry.oci.registry import Repository
from etkit.svg import COLOURS, document, text
from etkit.tables import size

_REFERRERS = re.compile("sha256-[0-9a-f]{64}")  # such a tag names a list of documents that refer to a manifest


@dataclass(frozen=True)
class Version:
    """A package of a repository.

    Attributes:
        digest: Its digest.
        tags: The tags that name it.
        created: Its date, if it has the annotation.
        programs: Its programs by name.
    """

    digest: str
    tags: list[str]
    created: str | None
    programs: dict[str, Facts] = field(default_factory=dict)


def read(repository: Repository, jobs: int) -> tuple[list[Version], list[str]]:
    """Reads every tag of a repository.

    Args:
        repository: The repository.
        jobs: The number of packages to read at the same time.

    Returns:
        The versions, by date if each has one, otherwise by tag; and the tags that name something other than a package.

    Raises:
        InputError: There is no such repository.
        BuildError: The registry does not answer, or a package is damaged.
    """
    tags = [tag for tag in repository.tags() if not _REFERRERS.fullmatch(tag)]
    found = transfer.in_parallel(repository, jobs, [partial(_version, repository, tag) for tag in tags])
    versions: dict[str, Version] = {}
    for version in found:
        if version is not None:
            versions.setdefault(version.digest, version).tags.extend(version.tags)
    for version in versions.values():
        version.tags[:] = sorted(set(version.tags), key=_natural)
    listed = sorted(versions.values(), key=lambda version: _natural(version.tags[0]))
    if all(version.created for version in listed):
        listed.sort(key=lambda version: dates.moment(version.created) or datetime.min.replace(tzinfo=timezone.utc))
    return listed, [tag for tag, version in zip(tags, found, strict=True) if version is None]


def _version(repository: Repository, tag: str) -> Version | None:
    try:
        content = transfer.read(repository, tag)
    except NoAccess:
        raise
    except InputError:  # an image, a signature, or a package of another release
        return None
    programs = {program.name: facts.read(content, program, repository.load) for program in content.programs}
    return Version(
        content.root.digest, [tag], dates.created(content.root, content.documents[content.root.sha256]), programs
    )


def _natural(name: str) -> list[tuple[int, int, str]]:
    """A key that sorts `v10` after `v9`."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d{1,18})", name)]


# The plot has a panel for each fact. A panel has a line for each program.
_PANELS: Mapping[str, Callable[[Facts], float | None]] = {
    "size": lambda each: each.size,
    "operators in delegates": lambda each: each.delegated,
    "planned memory": lambda each: each.memory,
}
_WIDTH, _HEIGHT, _LEFT, _TOP = 640, 110, 90, 40


def plot(versions: list[Version]) -> str:
    """The facts of versions as an SVG image. Equal versions give equal bytes."""
    names = sorted({name for version in versions for name in version.programs})
    body: list[str] = []
    for row, (title, fact) in enumerate(_PANELS.items()):
        body += _panel(_TOP + row * (_HEIGHT + 40), title, [_series(versions, name, fact) for name in names])
    for number, name in enumerate(names):
        colour = COLOURS[number % len(COLOURS)]
        body.append(text(_LEFT + 140 * number, 18, name, f'fill="{colour}"'))
    bottom = _TOP + len(_PANELS) * (_HEIGHT + 40)
    for index, version in enumerate(versions):
        if index in (0, len(versions) - 1):
            label = f"{version.tags[0]} {version.created[:10]}" if version.created else version.tags[0]
            anchor = "start" if index == 0 else "end"
            body.append(text(_across(index, len(versions)), bottom, label, f'text-anchor="{anchor}"'))
    return document(_LEFT + _WIDTH + 20, bottom + 20, body)


_Series = list[float | None]


def _series(versions: list[Version], name: str, fact: Callable[[Facts], float | None]) -> _Series:
    return [fact(version.programs[name]) if name in version.programs else None for version in versions]


def _panel(top: int, title: str, series: list[_Series]) -> list[str]:
    """A panel from 0 to the largest value."""
    largest = max((value for line in series for value in line if value is not None), default=0)
    shown = f"{largest:.0%}" if title == "operators in delegates" else size(int(largest))
    frame = f'<rect x="{_LEFT}" y="{top}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="#ccc"/>'
    parts = [frame, text(_LEFT, top - 6, title), text(_LEFT - 6, top + 10, shown, 'text-anchor="end"')]
    parts.append(text(_LEFT - 6, top + _HEIGHT, "0", 'text-anchor="end"'))
    for number, line in enumerate(series):
        points = [
            f"{_across(index, len(line)):.1f},{top + _HEIGHT * (1 - value / (largest or 1)):.1f}"
            for index, value in enumerate(line)
            if value is not None
        ]
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in (p.split(",") for p in points)]
    return parts


def _across(index: int, count: int) -> float:
    return _LEFT + _WIDTH * index / max(count - 1, 1)


def as_json(versions: list[Version], skipped: list[str]) -> dict[str, Any]:
    """The versions as JSON data."""
    return {"versions": [asdict(version) for version in versions], "skipped": skipped}
