"""The digest of the driver's code in a key: whole packages that the step runs (`step_packages.bzl`), whole plug-ins.

Comments, docstrings and the form of the sources are no code: digests are over syntax trees. Other versions of Python
may give other digests. To parse all sources takes a second, so digests of files are remembered.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from etbuild import plugins
from etbuild.errors import InputError
from etbuild.files.cache_directory import default_directory
from etbuild.files.digests import digest

_PACKAGE = Path(__file__).parents[1]
OF_PROGRAMS = frozenset(("export", "lower", "report"))
"""The steps that make the files of a program. Planning is not one of them: what a plan says is in the key as it is."""


@functools.cache
def packages() -> dict[str, list[str]]:
    """For each package of `etbuild` that steps run, these steps."""
    text = (_PACKAGE / "step_packages.bzl").read_text("utf-8").partition("STEP_PACKAGES =")[2].partition("}")[0]
    rows: dict[str, list[str]] = json.loads(text[: text.rindex(",")] + "}")  # it differs from JSON in the last comma
    return rows


def digest_of(step: str, used: Collection[str]) -> str:
    """The digest of the code that a step runs.

    Args:
        step: Its name.
        used: The packages of the plug-ins that the program uses in it.
    """
    return _digest(step, frozenset(used))


@functools.cache
def _digest(step: str, used: frozenset[str]) -> str:
    directories = {package: _PACKAGE / package for package, steps in packages().items() if step in steps}
    directories |= {plugin.package: plugin.directory for plugin in plugins.with_used(used)}
    return digest({name: _digest_of_package(directories[name]) for name in sorted(directories)})


def remember() -> None:
    """Digests all packages now: a process that lives long runs the code that it has imported, whatever files say."""
    for directory in [*map(_PACKAGE.joinpath, packages()), *(each.directory for each in plugins.plugins().values())]:
        _digest_of_package(directory)


@functools.cache
def _digest_of_package(directory: Path) -> str:
    below = "*" if directory == _PACKAGE else "**/*"  # `etbuild` itself: only the modules beside its packages
    files = sorted(path for kind in ("py", "json") for path in directory.glob(f"{below}.{kind}"))
    known = _remembered()
    before = dict(known)
    found = digest({path.relative_to(directory).as_posix(): _digest_of_file(path, known) for path in files})
    if known != before:
        _keep(known)
    return found


def _digest_of_file(path: Path, known: dict[str, str]) -> str:
    status = path.stat()
    state = f"{status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
    before, _, sha256 = known.get(str(path), "").rpartition(" ")
    if before != state:
        text = path.read_text("utf-8")
        sha256 = hashlib.sha256((code_of(text) if path.suffix == ".py" else text).encode()).hexdigest()
        known[str(path)] = f"{state} {sha256}"
    return sha256


def code_of(source: str) -> str:
    """The syntax tree of a Python source without docstrings, as text. Sources with other code have other texts."""
    tree = ast.parse(source)
    _remove_texts(tree)
    return ast.dump(tree)


def _remove_texts(node: ast.AST) -> None:
    """Removes statements that are only a text, such as docstrings, from a node and from all statements in it."""
    for field, below in ast.iter_fields(node):
        if isinstance(below, list) and below and isinstance(below[0], ast.stmt | ast.excepthandler | ast.match_case):
            kept = [each for each in below if not (isinstance(each, ast.Expr) and _is_text(each.value))]
            setattr(node, field, kept)
            for each in kept:
                _remove_texts(each)


def _is_text(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _places() -> Iterator[Path]:
    """Where digests of files are remembered: beside the bytecode of these files, else in the user's cache."""
    name = f"code.{sys.implementation.cache_tag}.json"  # other versions of Python have other trees
    yield _PACKAGE / "__pycache__" / name
    with suppress(InputError):
        yield default_directory() / name


@functools.cache
def _remembered() -> dict[str, str]:
    for place in _places():
        with suppress(OSError, ValueError):
            known = json.loads(place.read_text("utf-8"))
            if isinstance(known, dict):
                return known
    return {}


def _keep(known: Mapping[str, str]) -> None:
    """Writes what the next process need not compute, without files that are gone."""
    there = {path: row for path, row in known.items() if Path(path).exists()}
    for place in _places():
        unfinished = place.with_name(f"{place.name}.{os.getpid()}")
        with suppress(OSError):
            unfinished.write_text(json.dumps(there), "utf-8")
            unfinished.replace(place)
            return
