"""Chooses the tests of a change: `pytest --changed-since COMMIT`. See `coverage_map` for what covers what."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from tests.helpers.coverage_map import ALWAYS_WHOLE, COVERED_BY, EVERYTHING, Row


class UnknownCommit(Exception):
    """Git cannot compare the files with the commit. The message says why."""


@dataclass(frozen=True)
class Selection:
    """The files of tests that run.

    Attributes:
        whole: Those that are about the change.
        sampled: Further ones that the change can reach.
        unknown: Changed paths that the table does not know. They may reach everything.
    """

    whole: frozenset[str]
    sampled: frozenset[str]
    unknown: tuple[str, ...] = ()


def changed_paths(repository: Path, commit: str) -> list[str]:
    """Returns the paths that differ from a commit: committed or not, added, changed and removed.

    Raises:
        UnknownCommit: if the commit is not there, or this is no repository.
    """
    changed = _git(repository, "diff", "--name-only", "--no-renames", "-z", commit, "--")
    added = _git(repository, "ls-files", "--others", "--exclude-standard", "-z")
    return sorted({path for path in (changed + added).split("\0") if path})


def _git(repository: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=repository, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnknownCommit(done.stderr.strip())
    return done.stdout


def select(repository: Path, changed: Iterable[str] | None) -> Selection:
    """Returns the tests of a change.

    Args:
        repository: The root of the repository.
        changed: The paths that changed. None if nobody knows: then no file is about the change.
    """
    sources = {str(path.relative_to(repository)): path for path in sorted((repository / "tests").rglob("*.py"))}
    files = [path for path in sources if is_test_file(path)]
    always = set(_of(ALWAYS_WHOLE, files))
    if changed is None:
        return Selection(frozenset(always), frozenset(files) - always)
    whole, sampled, unknown = set(always), set[str](), []
    users = _users({name: path.read_text("utf-8") for name, path in sources.items()})
    for path in changed:
        if path.startswith("tests/") and path.endswith(".py") and path not in COVERED_BY:
            using = {each for each in _reached(path, users) if is_test_file(each)}
            whole |= using & set(files)
            if using:
                continue
        row = row_of(path)
        if row is None and not (repository / path).exists():
            continue  # removed: what had used it changed too
        if row is None:
            unknown.append(path)
        tests = row or EVERYTHING
        whole |= set(_of(tests.whole, files))
        sampled |= set(_of(tests.sample, files))
    return Selection(frozenset(whole), frozenset(sampled - whole), tuple(unknown))


def row_of(path: str, table: Mapping[str, Row] = COVERED_BY) -> Row | None:
    """Returns the row for a path: that of the longest name which is the path, or a folder of it, or how it begins."""
    names = [name for name in table if path.startswith(name)]
    return table[max(names, key=len)] if names else None


def is_always_whole(path: str) -> bool:
    """Whether all tests of a file run after each change."""
    return any(is_below(path, f"tests/{place}") for place in ALWAYS_WHOLE)


def is_test_file(path: str) -> bool:
    """Whether pytest collects the tests of a file."""
    return PurePosixPath(path).name.startswith("test_")


def _of(places: Iterable[str], files: Iterable[str]) -> Iterator[str]:
    """The files of tests at places: files, or folders with a slash at the end."""
    wanted = [f"tests/{place}" for place in places]
    return (file for file in files if any(is_below(file, place) for place in wanted))


def is_below(file: str, place: str) -> bool:
    """Whether a file is this place, or in this folder, which has a slash at its end."""
    return file == place or (place.endswith("/") and file.startswith(place))


def _users(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Which files below `tests` use each of them: they import it, or it is the conftest.py of a folder around them."""
    users: dict[str, set[str]] = {path: set() for path in sources}
    for path, text in sources.items():
        used = {f"{module.replace('.', '/')}.py" for module in _imports(path, text)}
        used |= {str(folder / "conftest.py") for folder in PurePosixPath(path).parents}
        for each in used:
            users.setdefault(each, set()).add(path)
    return users


def _imports(path: str, text: str) -> Iterator[str]:
    """The names of the modules that a file imports. Some may be names of something in a module."""
    folder = path.split("/")[:-1]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = folder[: len(folder) + 1 - node.level] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _reached(path: str, users: Mapping[str, set[str]]) -> set[str]:
    """A file, and all that use it, directly or not."""
    reached, waiting = {path}, [path]
    while waiting:
        new = users.get(waiting.pop(), set()) - reached
        reached |= new
        waiting += new
    return reached


def describe(selection: Selection, since: str | None) -> str:
    """Says in a few lines what a selection leaves out."""
    always = sum(map(is_always_whole, selection.whole))
    counts = (
        f"{always} test files run whole, and as many cases as --seconds allows: first those of "
        f"{len(selection.whole) - always} files about the change, then a sample of {len(selection.sampled)} others"
    )
    if since is None:
        return f"no commit to compare with: {counts}"
    lines = [f"changed since {since[:12]}: {counts}"]
    if selection.unknown:
        paths = ", ".join(selection.unknown)
        lines.append(f"tests/helpers/coverage_map.py does not know what covers {paths}, which may be everything")
    return "\n".join(lines)


def to_worker(selection: Selection) -> dict[str, Any]:
    """Returns a selection as values that pytest-xdist can send to its workers."""
    return {field: sorted(each) if isinstance(each, frozenset) else each for field, each in vars(selection).items()}


def from_controller(sent: Mapping[str, Any]) -> Selection:
    """Returns the selection that `to_worker` sent."""
    return Selection(frozenset(sent["whole"]), frozenset(sent["sampled"]), tuple(sent["unknown"]))
