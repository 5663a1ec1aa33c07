"""A long benchmark is measured in parts: `benchmarks.frame.joined`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import frame
from benchmarks.frame import Row

NEW: list[Row] = [{"model": "b", "s": 3}]


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """A directory with results of the models `a` and `b`."""
    frame.write(tmp_path, "zoo", {"models": [{"model": "a", "s": 1}, {"model": "b", "s": 2}]}, loaded=False)
    return tmp_path


def test_the_rows_of_other_models_stay(earlier: Path) -> None:
    assert frame.joined(earlier, "zoo", "models", NEW, loaded=False) == [{"model": "a", "s": 1}, *NEW]


def test_rows_of_other_work_go(earlier: Path) -> None:
    assert frame.joined(earlier, "zoo", "models", NEW, loaded=True) == NEW
    assert frame.joined(earlier, "zoo", "others", NEW, loaded=False) == NEW
    assert frame.joined(None, "zoo", "models", NEW, loaded=False) == NEW


@pytest.mark.parametrize(("part", "key"), [("machine", "processors"), ("measured", "models")])
def test_rows_of_another_machine_or_other_code_go(earlier: Path, part: str, key: str) -> None:
    path = earlier / "zoo.json"
    content = json.loads(path.read_text())
    content[part][key] = {"code": "another"} if part == "measured" else 64
    path.write_text(json.dumps(content))
    assert frame.joined(earlier, "zoo", "models", NEW, loaded=False) == NEW
