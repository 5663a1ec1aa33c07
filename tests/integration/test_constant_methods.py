"""Constant methods from code: evaluated in the export, stored with it, and answered by the runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.exir.tensor import scalar_type_table
from executorch.runtime import Runtime

from etbuild.cli import main
from etbuild.export.constant_methods import DTYPES

from .conftest import MANIFEST, MODEL, Build

CONSTANTS = """\
import torch

def number(start=0):
    return start + 7

def table(rows):
    return torch.arange(rows * 3.0).reshape(3, rows).T

def ids():
    return (3, 1, 2)

def fraction():
    return 0.1

def text():
    return "bytes"

def flag():
    return True

def flags():
    return [True, False]

def nothing():
    return []

def no_text():
    return "a\\0b\\ud800"

def unsigned():
    return torch.ones(2, dtype=torch.uint64)

def huge():
    return 2**63

def infinite():
    return [1.0, float("inf")]

def mapping():
    return {"a": 1}

def names():
    return ["a"]

def complex_numbers():
    return torch.zeros(2, dtype=torch.complex64)
"""

FROM_CODE = """\
constant_methods:
  plain: 3
  number: {factory: "constants:number", kwargs: {start: 5}}
  table: {factory: "constants:table", kwargs: {rows: 2}}
  ids: {factory: "constants:ids"}
  fraction: {factory: "constants:fraction"}
  text: {factory: "constants:text"}
  flag: {factory: "constants:flag"}
  flags: {factory: "constants:flags"}
  plain_flags: [true, false]
"""


def answers(program: Path, *names: str) -> list[list[Any]]:
    loaded = Runtime.get().load_program(program)
    return [list(loaded.load_method(name).execute([])) for name in names]


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_the_runtime_answers_what_the_code_returned(build: Build, jobs: str) -> None:
    methods = "methods:\n  again: {entry: forward, example_inputs: [{shape: [1, 8]}]}"
    made = build(MANIFEST.replace("methods:", methods) + FROM_CODE, "--jobs", jobs, constants=CONSTANTS)
    assert made.code == 0, made.err
    found = answers(made.directory / "net.pte", "plain", "number", "ids", "fraction", "text", "flag", "flags")
    assert found == [[3], [12], [3, 1, 2], [0.1], ["bytes"], [True], [True, False]]
    assert answers(made.directory / "net.pte", "plain_flags") == [[True, False]]
    [[table]] = answers(made.directory / "net.pte", "table")
    torch.testing.assert_close(table, torch.tensor([[0.0, 2, 4], [1, 3, 5]]))
    assert made.json("net.report.json")["constant_methods"] == {
        "plain": 3,
        "number": 12,
        "table": {"dtype": "float32", "shape": [2, 3]},
        "ids": [3, 1, 2],
        "fraction": 0.1,
        "text": "bytes",
        "flag": True,
        "flags": [True, False],
        "plain_flags": [True, False],
    }


def test_a_value_that_stays_lowers_nothing_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.yaml").write_text(MANIFEST + FROM_CODE)
    (tmp_path / "model.py").write_text(MODEL)
    command = ["build", str(tmp_path / "model.yaml"), "--json", "-o", str(tmp_path / "out")]
    said = []
    for edit in ("return start + 7", "return 7 + start", "return 8 + start"):
        (tmp_path / "constants.py").write_text(CONSTANTS.replace("return start + 7", edit))
        assert main.main(command) == 0
        said.append(capfd.readouterr().out)
    assert ['"lower": "cached"' in text for text in said] == [False, True, False], said
    assert answers(tmp_path / "out" / "net.pte", "number") == [[13]]


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("huge", "`constants:huge` returned 9223372036854775808, which does not fit into 64 bits"),
        ("infinite", "`constants:infinite` returned inf, which is not finite"),
        ("mapping", "`constants:mapping` returned dict"),
        ("names", "`constants:names` returned list with str"),
        ("complex_numbers", "`constants:complex_numbers` returned a tensor of complex64, which a program cannot hold"),
        ("unsigned", "`constants:unsigned` returned a tensor of uint64, which a program cannot hold"),
        ("nothing", "`constants:nothing` returned an empty list"),
        ("no_text", "`constants:no_text` returned a string that is not valid Unicode: surrogates not allowed at 3"),
    ],
)
def test_values_that_cannot_be_constants_are_errors(build: Build, factory: str, message: str) -> None:
    made = build(f'{MANIFEST}constant_methods: {{value: {{factory: "constants:{factory}"}}}}', constants=CONSTANTS)
    assert made.code == 1
    assert f"constant_methods.value.factory: {message}" in made.err


def test_the_dtypes_of_tensors_are_those_of_executorch() -> None:
    wanted = {dtype for dtype in scalar_type_table if not dtype.is_complex and "q" not in str(dtype)}
    assert set(DTYPES) == wanted
