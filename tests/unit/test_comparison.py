"""The figures in docs/comparison.md are those of the results of the benchmarks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from etbuild.manifest.sections import Manifest, Method
from etbuild.plan.plan import from_manifest
from tools import write_comparison
from tools.write_comparison import PAGE, filled


def test_the_figures_of_the_page_are_those_of_the_results() -> None:
    page = PAGE.read_text("utf-8")
    assert filled(page) == page, "python -m tools.write_comparison"


def test_every_table_of_the_page_is_written() -> None:
    page = PAGE.read_text("utf-8")
    without = re.sub(r"\n\| [^\n]*\|", "", page[page.index("## What was measured") : page.index("## Sources")])
    assert filled(without) != without
    assert len(re.findall("<!-- end of", without)) == 3


def test_another_result_is_another_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = write_comparison._RESULTS
    for name in ("llm.json", "lowering.json", "zoo.json", "families.jsonl"):
        (tmp_path / name).write_bytes((results / name).read_bytes())
    figures = json.loads((tmp_path / "llm.json").read_text("utf-8"))
    figures["sections"]["programs"]["ours"]["export CPU s"] = 12345.6
    (tmp_path / "llm.json").write_text(json.dumps(figures), "utf-8")
    monkeypatch.setattr(write_comparison, "_RESULTS", tmp_path)
    assert "| 12346 |" in filled(PAGE.read_text("utf-8"))


def test_its_code_is_in_the_key_of_its_step_and_in_no_other() -> None:
    """What makes the bytes of a program does not depend on what compares it."""
    method: Method = {"example_inputs": [{"shape": [1, 8]}], "partitioners": [{"backend": "xnnpack", "options": {}}]}
    manifest: Manifest = {"name": "net", "model": {"factory": "model:create"}, "methods": {"forward": method}}
    plan, steps = from_manifest(manifest), ("plan", "export", "lower", "compare", "report")
    assert [step for step in steps if "etplugins.comparison" in plan.plugins_of(step)] == ["compare"]
