"""The copy of the driver that actions have: its code is that of the sources, and its lines are in the same places."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from etbuild.key.code import code_of

TOOLCHAIN = Path(__file__).parents[2] / "toolchain"
SCRIPT = TOOLCHAIN / "copy_driver.py"
SOURCE = '''\
"""A module.

Of three lines."""
import os  # a comment

NAME = "# no comment"
"""What it is."""


class Thing:
    """A class."""

    text = """
    # no comment, either
    """  # but this

    # A line of its own.
    def add(self, parser):
        r"""Says it."""
        parser.add_argument(
            "--x",  # in between
            help="a text "
            'of two',
            metavar="help",
        )
        parser.add_argument("--y", help=("in " "brackets"), default="kept")
        parser.add_argument("--z", help=f"the {self}" " and more", default="kept")
'''
STAYS = ("import os", "NAME", "class Thing", "# no comment, either", "def add", "metavar", "kept")


def number_of_line(source: str, text: str) -> int:
    return source[: source.index(text)].count("\n")


def copied(directory: Path, form: str, *files: Path) -> dict[str, str]:
    """What the script writes: the texts by path, and `together`."""
    pairs = [word for file in files for word in (f"below/{file.name}", file)]
    command = [sys.executable, "-I", "-S", SCRIPT, form, directory / "out", directory / "together", *pairs]
    subprocess.run(command, check=True)
    texts = {file.name: (directory / "out/below" / file.name).read_text("utf-8") for file in files}
    return {**texts, "together": (directory / "together").read_text("utf-8")}


def without_help(source: str) -> str:
    """The code of a source in which each help text is empty."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "help" and isinstance(node.value, ast.Constant):
            node.value = ast.Constant("")
    return code_of(ast.unparse(tree))


def test_texts_go_and_code_and_lines_stay(tmp_path: Path) -> None:
    file, data = tmp_path / "a.py", tmp_path / "a.json"
    file.write_text(SOURCE, "utf-8")
    data.write_text('{"a": "# b"}', "utf-8")
    written = copied(tmp_path, "without_texts", file, data)
    copy = written["a.py"]
    assert without_help(copy) == without_help(SOURCE)
    gone = ("A module", "three", "a comment", "What", "but this", "of its own", "Says", "a text", "of two", "brackets")
    assert [text for text in gone if text in copy] == []
    assert 'f"the {self}"' in copy
    assert [number_of_line(copy, text) for text in STAYS] == [number_of_line(SOURCE, text) for text in STAYS]
    assert written["a.json"] == data.read_text("utf-8")
    assert written["together"] == f"below/a.py\n{copy}below/a.json\n{written['a.json']}"


def test_people_get_the_whole_source(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text(SOURCE, "utf-8")
    assert copied(tmp_path, "whole", file)["a.py"] == SOURCE


@pytest.mark.parametrize("place", ["etbuild", "etplugins"])
def test_the_code_of_the_driver_stays(tmp_path: Path, place: str) -> None:
    for number, file in enumerate(sorted((TOOLCHAIN / place).rglob("*.py"))):
        if number % 16 == 0:  # all of them take 20 seconds
            source, copy = file.read_text("utf-8"), copied(tmp_path, "without_texts", file)[file.name]
            assert without_help(copy) == without_help(source), file
            assert copy.count("\n") == source.count("\n"), file
