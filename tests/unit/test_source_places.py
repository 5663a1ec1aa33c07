"""Lines of sources in messages: with the file's path from the working directory, as an editor opens it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from etbuild.export import assigning_lines
from etbuild.inputs.user_code import from_here

SOURCE = b"""\
class Net:
    def __init__(self):
        self.calls, self.seen = 0, []

    def forward(self, x):
        self.calls += 1
        self.seen[0] = x
        return x
"""


def finder(path: Path) -> Any:
    return SimpleNamespace(sources={"net.py": path}, contents={"net.py": SOURCE})


def test_a_source_below_the_working_directory_has_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = "net.py:3, in forward"
    assert from_here(place, finder(Path("models/net.py"))) == f"models/{place}"
    assert from_here(place, finder(tmp_path / "models/net.py")) == f"models/{place}"
    assert from_here(place, finder(tmp_path.parent / "net.py")) == place


@pytest.mark.parametrize(
    ("names", "hint"),
    [
        (["calls"], "it is assigned at models/net.py:6: `self.calls += 1`"),
        (["net.seen[0]"], "it is assigned at models/net.py:7: `self.seen[0] = x`"),
        (["other"], None),
    ],
)
def test_the_line_that_assigns_is_found(
    names: list[str], hint: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert assigning_lines.hint(names, finder(Path("models/net.py"))) == hint
