"""What is printed beside errors for people who know PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest

from etbuild.errors import InputError, Problem
from etkit.building.advice import advised


def hint(problem: Problem) -> str:
    return advised([problem])[0].hint or ""


def test_a_word_of_others_is_only_proposed_where_ours_is_known() -> None:
    key = Problem("unknown key `max_size`", hint="known: max_program_bytes, finite")
    assert hint(key) == "did you mean `max_program_bytes`?\nknown: max_program_bytes, finite"
    elsewhere = Problem("unknown key `max_size`", hint="known: a, b")
    assert hint(elsewhere) == "known: a, b"


def test_advice_depends_on_the_place() -> None:
    error = InputError.at(("methods", "forward", "example_inputs", 0, "shape", 0), "must be at least 1, got -1")
    assert "`dynamic_shapes` says which sizes may change" in hint(error.problems[0])
    assert hint(InputError.at(("jobs",), "must be at least 1, got -1").problems[0]) == ""


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("TypeError: create() missing 2 required positional arguments: 'a' and 'b'", "`model.kwargs`: {a, b: ...}"),
        ("AttributeError: 'Net' object has no attribute 'linaer'", "set `self.linaer` in `__init__`"),
        ("AttributeError: 'NoneType' object has no attribute 'shape'", ""),
        ("AttributeError: 'Tensor' object has no attribute 'shap'", ""),
        ("AttributeError: 'list' object has no attribute 'shape'", ""),
    ],
)
def test_names_of_the_message_are_in_the_advice(message: str, said: str) -> None:
    found = hint(Problem(message))
    assert said in found
    assert bool(said) == bool(found)


def test_nothing_is_said_twice() -> None:
    [once] = advised([Problem("SystemExit: 3")])
    assert advised([once]) == [once]


def test_the_manifests_beside_a_missing_one(tmp_path: Path) -> None:
    (tmp_path / "net.yaml").touch()
    (tmp_path / "notes.txt").touch()
    missing = Problem(f"{tmp_path}/nte.yaml: cannot read the file: No such file or directory")
    assert hint(missing) == "did you mean `net.yaml`? (known: net.yaml)"
    assert hint(Problem("/nowhere/net.yaml: cannot read the file: No such file or directory")) == ""
