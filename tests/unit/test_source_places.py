"""Lines of sources in messages: with the file's path from the working directory, as an editor opens it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from etbuild.inputs.sources import UsedSources
from etbuild.inputs.user_code import SourceFinder, active_finder, from_here
from etplugins.assignments import assigning_lines

SOURCE = b"""\
class Net:
    def __init__(self):
        self.calls, self.seen = 0, []

    def forward(self, x):
        self.calls += 1
        self.seen[0] = x
        return x
"""


Declare = Callable[..., None]


@pytest.fixture
def declare(monkeypatch: pytest.MonkeyPatch) -> Declare:
    def declared(path: Path, source: bytes = SOURCE) -> None:
        finder = SourceFinder(UsedSources({"net.py": path}, set(), {"net.py": source}))
        monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])

    return declared


@pytest.mark.parametrize(
    ("file", "shown"),
    [("models/net.py", "models/net.py"), ("{here}/models/net.py", "models/net.py"), ("../net.py", "net.py")],
)
def test_a_source_below_the_working_directory_has_its_path(
    file: str, shown: str, declare: Declare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    declare(tmp_path.parent / "net.py" if file.startswith("..") else Path(file.format(here=tmp_path)))
    assert from_here("net.py:3, in forward") == f"{shown}:3, in forward"


@pytest.mark.parametrize("removed", [False, True])
def test_code_that_changes_the_directory_moves_no_source(
    removed: bool, declare: Declare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    declare(Path("net.py"))
    finder, other = active_finder(), tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(other)
    if removed:
        other.rmdir()
    assert from_here("net.py:3, in forward") == "net.py:3, in forward"
    assert finder.name_of(str(tmp_path / "net.py")) == "net.py"
    spec = finder.find_spec("net")
    assert spec is not None
    assert spec.origin == str(tmp_path / "net.py")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("names", "hint"),
    [
        (["calls"], "it is assigned at models/net.py:6: `self.calls += 1`"),
        (["net.seen[0]"], "it is assigned at models/net.py:7: `self.seen[0] = x`"),
        (["other"], None),
    ],
)
def test_the_line_that_assigns_is_found(
    names: list[str], hint: str | None, declare: Declare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    declare(Path("models/net.py"))
    assert assigning_lines.hint(names) == hint


def test_lines_that_only_read_are_not_shown(declare: Declare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    declare(Path("net.py"), b"def f(self, x):\n    y = self.state.mul(2) + self.state.mean()\n    self.state.add_(x)\n")
    assert assigning_lines.hint(["state"]) == "it is assigned at net.py:3: `self.state.add_(x)`"


@pytest.mark.parametrize("before", [b"'\x0c'", "'\u2028'".encode(), b"T = " + b"1 + " * 1500 + b"1"])
def test_odd_sources_have_their_lines(
    before: bytes, declare: Declare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    declare(Path("net.py"), before + b"\ndef f(self, x):\n    self.state = x\n")
    assert assigning_lines.hint(["state"]) == "it is assigned at net.py:3: `self.state = x`"
