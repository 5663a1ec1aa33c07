"""The table of families in `docs/families.md` is what its command finds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.snippets import ROOT

PAGE = ROOT / "docs/families.md"


def rows_of_the_page() -> dict[str, list[str]]:
    """The cells of each row, by family."""
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if " | text-generation | " in line]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row for row in cells}


@pytest.mark.long
def test_a_family_has_its_row_in_the_page(tmp_path: Path) -> None:
    """One family of decoders that keep states and keys with values."""
    results = tmp_path / "rows.jsonl"
    script = ROOT / "benchmarks/families/run.py"
    command = [sys.executable, str(script), "--only", "lfm2", "--results", str(results)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(results.read_text("utf-8"))
    row = rows_of_the_page()["lfm2"]
    expected = [found[key] for key in ("family", "task", "cache", "equal", "size", "memory", "size_4_bits")]
    assert row[: len(expected)] == expected
    assert found["works"]
    assert float(found["divergence"]) < 2 * float(row[len(expected)]) + 0.01


def rows_of_other_tasks() -> dict[tuple[str, str], list[str]]:
    """The cells of each row of the second table, by family and task."""
    lines = PAGE.read_text("utf-8").partition("## Other tasks")[2].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return {(row[0], row[1]): row for row in cells[1:]}


@pytest.mark.long
def test_a_family_of_another_task_has_its_row_in_the_page(tmp_path: Path) -> None:
    results = tmp_path / "rows.jsonl"
    script = ROOT / "benchmarks/families/run.py"
    command = [sys.executable, str(script), "--tasks", "nomic_bert:AutoModel", "--results", str(results)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(results.read_text("utf-8"))
    row = rows_of_other_tasks()["nomic_bert", "none, `AutoModel`"]
    assert row[:3] + row[4:6] == [found[key] for key in ("family", "task", "written", "size", "memory")]
    assert found["works"]


def test_each_family_of_another_task_has_a_result_or_a_note() -> None:
    rows = rows_of_other_tasks()
    assert rows
    assert [name for name, row in rows.items() if not row[3] and not row[-1]] == []


def test_each_family_of_the_page_has_a_result_or_a_note() -> None:
    rows = rows_of_the_page()
    assert rows
    assert [family for family, row in rows.items() if not row[3] and not row[-1]] == []
