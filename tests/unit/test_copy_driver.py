"""The copy of the driver that actions have: its code is that of the sources, and its lines are in the same places."""

from __future__ import annotations

import ast
import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from etbuild import json_schema
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


def test_schemas_have_the_descriptions_that_messages_quote(tmp_path: Path) -> None:
    text = {"description": "A text.", "type": "string", "pattern": "a"}
    either = {"description": "Either.", "anyOf": [{"description": "One.", "type": "null"}, text]}
    schema = {
        "$defs": {"each": {"description": "Each.", "items": {"description": "An item.", "type": "integer"}}},
        "description": "All.",
        "properties": {"description": {"description": "Its own.", "type": "string"}, "either": either, "text": text},
    }
    file = tmp_path / "model.schema.json"
    file.write_text(json.dumps(schema))
    command: list[str | Path] = [sys.executable, "-I", "-S", SCRIPT, "without_texts", tmp_path / "out"]
    subprocess.run(
        [*command, tmp_path / "together", "etbuild/schemas/model.schema.json", file, "etplugins/own.json", file],
        check=True,
    )
    assert json.loads((tmp_path / "out/etbuild/schemas/model.schema.json").read_text()) == {
        "$defs": {"each": {"items": {"type": "integer"}}},
        "properties": {
            "description": {"type": "string"},
            "either": {"description": "Either.", "anyOf": [{"type": "null"}, text]},
            "text": text,
        },
    }
    assert json.loads((tmp_path / "out/etplugins/own.json").read_text()) == schema  # keys of the command line hold it


def test_messages_of_a_copied_schema_are_those_of_the_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For every rule of the schema of manifests: values of each type at each place."""
    whole = json_schema.validator("model").schema
    file = tmp_path / "model.schema.json"
    copied_schema = runpy.run_path(str(SCRIPT))["without_descriptions"](whole)
    assert json.dumps(copied_schema).count('"description"') < json.dumps(whole).count('"description"') / 2
    file.write_text(json.dumps(copied_schema))
    for name, definition in [("", whole), *whole["$defs"].items()]:
        part = tmp_path / f"{name}.json"
        part.write_text(
            json.dumps({**copied_schema["$defs"][name], "$defs": copied_schema["$defs"]} if name else copied_schema)
        )
        keys = [*definition.get("properties", {})]
        values = [None, True, 1, -1.5, "", "a b", "a/b:c", [], [1, "x", "x"], {}, {"x y": 1}]
        for value in [*values, *({key: each} for key in keys for each in values)]:
            expected = json_schema.problems(f"model#{name}" if name else "model", value)
            assert json_schema.problems(part, value) == expected, (name, value)
