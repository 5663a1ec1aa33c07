"""Each test that the pages of conformance and sharing name exists, and each promise has a test."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/conformance.md").read_text("utf-8")
SHARING = (ROOT / "docs/explanation/sharing.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"(test_\w+\.py)::(test_\w+)", TEXT + SHARING)))
ROWS = [line for line in TEXT.splitlines() if line.startswith("| ")][1:]


@pytest.mark.parametrize(("file", "test"), NAMED, ids=lambda name: name)
def test_a_named_test_exists(file: str, test: str) -> None:
    module = ast.parse((ROOT / "tests/conformance" / file).read_text("utf-8"))
    assert test in {node.name for node in module.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_a_promise_has_a_test(row: str) -> None:
    assert re.search(r"`test_\w+\.py::test_\w+`", row.split("|")[3])


def test_no_test_of_a_promise_is_left_out() -> None:
    module = ast.parse((ROOT / "tests/conformance/test_promises.py").read_text("utf-8"))
    tests = {node.name for node in module.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}
    assert tests == {test for file, test in NAMED if file == "test_promises.py"}
