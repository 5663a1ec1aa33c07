"""Writes docs/reliability.md from the results of the campaigns in benchmarks/results.

    make fuzz faults
    python tools/write_reliability.py

It also counts the cases in two tables of the tests: hostile models, and ways to read something.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "reliability.md"
TEMPLATE = Path(__file__).with_name("reliability_template.md")


def _result(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text("utf-8"))


def page() -> str:
    """Returns the page."""
    sys.path.insert(0, str(ROOT))
    from tests.faults import test_hostile_models, test_staleness

    fuzz = [
        f"| `{each['target']}` | {each['executions']:,} | {each['seconds']:,} | {each['findings']} |"
        for each in _result("fuzz")
    ]
    faults = {key: value for key, value in _result("faults").items() if isinstance(value, int)}
    return TEMPLATE.read_text("utf-8").format(
        fuzz="\n".join(fuzz),
        faults="\n".join(f"| {key} | {value:,} |" for key, value in faults.items()),
        harmless=len(test_hostile_models.HARMLESS),
        deadly=len(test_hostile_models.DEADLY),
        ways=len(test_staleness.ROWS),
    )


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
