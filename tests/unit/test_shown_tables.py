"""A terminal shows what `diff` and `explain` print elsewhere, with the differences in colours."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from etkit import tables

from .indexes import make_index

EVIL = "[red]bold[/red] :smile: \x1b[2J\u202e name"


def on_terminal(*arguments: object, **environment: str) -> str:
    """Returns what `etbuild` writes to a terminal."""
    ours, theirs = pty.openpty()
    variables = {**os.environ, "TERM": "xterm-256color", **environment}
    command = [sys.executable, "-m", "etbuild", *map(str, arguments)]
    with subprocess.Popen(command, stdout=theirs, stdin=subprocess.DEVNULL, env=variables) as process:
        os.close(theirs)
        parts = []
        while True:
            try:
                parts.append(os.read(ours, 65536))
            except OSError:  # the command has closed the terminal
                break
            if not parts[-1]:
                break
    os.close(ours)
    assert process.returncode == 0
    return b"".join(parts).decode().replace("\r\n", "\n")


@pytest.fixture
def indexes(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{name}.index.json" for name in ("before", "after")]
    index = make_index()
    paths[0].write_text(json.dumps(index), "utf-8")
    index["artifacts"][0]["size"] = 2000
    paths[1].write_text(json.dumps(index), "utf-8")
    return paths


def piped(*arguments: object) -> str:
    command = [sys.executable, "-m", "etbuild", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_terminal_shows_the_same_table(indexes: list[Path]) -> None:
    assert on_terminal("explain", indexes[0]) == piped("explain", indexes[0])


def test_differences_have_colours(indexes: list[Path]) -> None:
    shown = on_terminal("diff", *indexes)
    assert "\x1b[33m" in shown  # yellow: changed
    assert re.sub(r"\x1b\[\d*m", "", shown) == piped("diff", *indexes)


@pytest.mark.parametrize("variable", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_without_colours(indexes: list[Path], variable: dict[str, str]) -> None:
    assert on_terminal("diff", *indexes, **variable) == piped("diff", *indexes)


def test_cells_are_escaped() -> None:
    assert tables.table([(EVIL, "1")]) == "[red]bold[/red] :smile: \\x1b[2J\\u202e name  1"
