"""Scalars are those of YAML 1.2's core schema, or errors."""

from pathlib import Path
from typing import Any

import pytest

from etbuild.errors import InputError
from etbuild.manifest import yaml_document


def load(path: Path, text: str) -> Any:
    path.write_text(f"value: {text}\n", "utf-8")
    return yaml_document.load(path).data["value"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("1E5", 1e5),
        ("1.5e3", 1500.0),
        ("-.5", -0.5),
        ("2.", 2.0),
        ("12", 12),
        ("-0", 0),
        ("+3", 3),
        ("0o17", 15),
        ("0x1F", 31),
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("", None),
        ("y", "y"),
        ("=", "="),
        ("1e", "1e"),
        ("3x", "3x"),
        ('"017"', "017"),
        ("'yes'", "yes"),
        ("!!str 1:30", "1:30"),
    ],
)
def test_scalars_are_those_of_yaml_1_2(tmp_path: Path, text: str, value: object) -> None:
    found = load(tmp_path / "x.yaml", text)
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize(
    "text",
    ["yes", "No", "on", "OFF", "017", "-08", "1_000", "0b11", "1:30", "1:30.5", "2026-01-31", "2026-13-45", "0b_"],
)
def test_values_that_yaml_1_1_reads_differently_are_errors(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError) as error:
        load(tmp_path / "x.yaml", text)
    (problem,) = error.value.problems
    assert f'"{text}" in quotes for text' in str(problem.hint)


@pytest.mark.parametrize("text", ["1" * 5001, "0" + "1" * 5001, "0b" + "1" * 20000])
def test_a_number_can_be_too_long(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match="is too long for a number"):
        load(tmp_path / "x.yaml", text)
