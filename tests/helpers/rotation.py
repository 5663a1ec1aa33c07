"""Which of the tests with PyTorch or Bazel `make test` runs: cases about the change, and others that a hash draws.

All of them take more than an hour. The other tests always run.
"""

from __future__ import annotations

import ast
import hashlib
import math
import subprocess
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

SLOW = ("bazel", "conformance", "faults", "integration", "remote")
"""The folders of tests with PyTorch or Bazel."""
ONE_IN, ONE_LONG_IN = 8, 16
"""Of so many cases of a file, a hash draws one; of those with the marker `long`, one of so many."""
FEW = 12
"""So many files of tests are about a change at most, so that the time has a limit. More are drawn."""


def not_drawn(items: Iterable[pytest.Item], commit: str, about: Collection[str] = ()) -> set[pytest.Item]:
    """Returns the cases that do not run: others for each commit, and the same ones on each machine.

    Cases of a file with the same parameters are drawn together, so that they can share what fixtures build. A test
    with the marker can name another case, or any name, that it is drawn with: `long("gemma-ring")`.

    Args:
        items: All cases.
        commit: The hash of a commit.
        about: The files of tests whose cases all run, and the parameters of other cases that do.
    """
    draws: dict[tuple[str, int], dict[str, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        file, marker = item.nodeid.partition("::")[0], item.get_closest_marker("long")
        [group] = (marker and marker.args) or [case_of(item) or item.name]
        always = file.split("/")[1] not in SLOW or item.get_closest_marker("always")
        if not (always or file in about or case_of(item) in about):
            draws[file, ONE_LONG_IN if marker else ONE_IN][group].append(item)
    left = set[pytest.Item]()
    for (file, one_in), groups in draws.items():
        order = sorted(groups, key=lambda name: _number(f"{commit} {file} {name}"))
        count = math.floor(len(order) / one_in + _number(f"{commit} {file}"))  # so that a single one has its turn too
        left.update(item for name in order[count:] for item in groups[name])
    return left


def _number(text: str) -> float:
    """A number from 0 to 1 that looks drawn, and is always the same for a text."""
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 16**8


def changed_paths(repository: Path, commit: str) -> list[str]:
    """Returns the paths that differ from a commit: committed or not, added, changed and removed."""
    commands = (["diff", "--name-only", "--no-renames", commit], ["ls-files", "--others", "--exclude-standard"])
    return [
        path
        for command in commands
        for path in subprocess.check_output(["git", *command], cwd=repository, text=True).splitlines()
    ]


def about(repository: Path, changed: Collection[str]) -> set[str]:
    """Returns the files of tests that changed, and those that import what did, and the other paths that changed.

    Of the driver, a change of a module is one of its package. The packages that the fewest files import come first.
    """
    paths = (path for folder in SLOW for path in (repository / "tests" / folder).glob("test_*.py"))
    files = {str(path.relative_to(repository)): path.read_text("utf-8") for path in paths}
    importers: dict[str, set[str]] = defaultdict(set)
    for name, text in files.items():
        for imported in _imports(name, text):
            importers[imported].add(name)
    modules = {_module(path) for path in changed if path.endswith(".py")}
    using = sorted((importers[module] for module in modules), key=lambda each: (len(each), sorted(each)))
    found = set[str]()
    for group in ({*changed} & {*files}, *using):
        found |= group if len(found | group) <= FEW else set()
    return {*changed} - {*files} | found


def _module(path: str) -> str:
    """The package of a file of the driver, or the module of another file."""
    parts = path.removeprefix("toolchain/").removesuffix(".py").split("/")
    return ".".join(parts[:2] if path.startswith("toolchain/") else parts)


def _imports(path: str, text: str) -> Iterator[str]:
    """The names of the modules that a file imports, and of the packages around them."""
    folder = path.split("/")[:-1]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = folder[: len(folder) + 1 - node.level] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        for parts in (name.split(".") for name in names):
            yield from (".".join(parts[:count]) for count in range(2, len(parts) + 1))


def case_of(item: pytest.Item) -> str:
    """Returns the identifier of a test's parameters; an empty string if it has none."""
    return item.callspec.id if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ""


def values_that_run(request: pytest.FixtureRequest, parameter: str) -> set[Any]:
    """Returns the values of a parameter in those tests of a fixture's file that this run selected.

    With it, a fixture that makes something for each value makes nothing in vain.
    """
    here = [item for item in request.session.items if item.path == request.path and case_of(item)]
    chosen = [item.callspec.params for item in here if isinstance(item, pytest.Function)]
    return {values[parameter] for values in chosen if parameter in values}
