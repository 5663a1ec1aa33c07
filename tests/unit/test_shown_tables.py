"""On a terminal, `diff`, `explain` and `inspect` show tables in its width; elsewhere they print plain text."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest

from etkit.analysis import inspection, tables

from .indexes import make_index

EVIL = "[red]bold[/red] :smile: \x1b[2J\u202e name"


def on_terminal(columns: int, *arguments: object, **environment: str) -> str:
    """Returns what `etbuild` writes to a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    variables = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    variables |= {"TERM": "xterm-256color", **environment}
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


def plain(shown: str) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", shown)


@pytest.fixture
def indexes(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{name}.index.json" for name in ("before", "after")]
    for path in paths:
        path.write_text(json.dumps(make_index()), "utf-8")
    return paths


@pytest.mark.parametrize("columns", [40, 100])
def test_a_tree_of_inputs_fits_the_terminal(indexes: list[Path], columns: int) -> None:
    shown = on_terminal(columns, "explain", indexes[0])
    assert "\x1b[" in shown
    assert max(map(len, plain(shown).splitlines())) <= columns
    assert "executorch" in plain(shown)


def test_without_colours(indexes: list[Path]) -> None:
    assert not re.search(r"\x1b\[[\d;]*3\dm", on_terminal(80, "explain", indexes[0], NO_COLOR="1"))
    dumb = on_terminal(80, "explain", indexes[0], TERM="dumb")
    piped = subprocess.run(
        [sys.executable, "-m", "etbuild", "explain", str(indexes[0])], capture_output=True, text=True, check=True
    )
    assert dumb == piped.stdout
    assert "\x1b" not in dumb


def test_differences_have_colours(indexes: list[Path]) -> None:
    index = make_index()
    index["artifacts"][0]["size"] = 2000
    indexes[1].write_text(json.dumps(index), "utf-8")
    shown = on_terminal(60, "diff", *indexes)
    assert "\x1b[33m" in shown  # yellow: changed
    assert "artifacts" in plain(shown)
    assert max(map(len, plain(shown).splitlines())) <= 60


def test_cells_are_escaped_and_have_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    tables.show([tables.Table(EVIL, ("a", "b"), [(EVIL, "1")], (1,), ("green",))])
    out = capsys.readouterr().out
    assert "[red]bold[/red] :smile: \\x1b[2J\\u202e name" in out
    assert "\x1b" not in out


def test_a_program_as_tables() -> None:
    value: Any = {"dtype": "float32", "shape": [1, 2], "dynamic": True}
    method: Any = {
        "inputs": [value],
        "outputs": [value],
        "delegates": {"XnnpackBackend": 2},
        "operators": {"aten::sin.out": 1},
        "memory": [1000],
    }
    sizes: Any = {"constants": [1, 2], "mutable": [], "delegates": [5], "named_data": {"k": 7}}
    facts: Any = {"kind": "program", "file": "net.pte", "size": 10, "sha256": "ab", "methods": {"forward": method}}
    facts.update({"bytes": sizes, "external_keys": ["w"]})
    head, forward, kinds, expected = inspection.tables(facts)
    assert head.title == "net.pte  10 B  sha256 ab"
    assert forward.title == "forward(float32[1, 2] or less) -> (float32[1, 2] or less)"
    assert forward.rows == [("delegate XnnpackBackend", "2"), ("aten::sin.out", "1"), ("memory of arena 1", "1.0 kB")]
    assert kinds.rows[0] == ("constants", "2", "3 B")
    assert expected.rows == [("w",)]
