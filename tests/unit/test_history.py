"""What `etbuild watch` says, draws and keeps."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from etkit.building.history import Entry, History, Score
from etkit.local import agreement


def entry(directory: Path, name: str, score: float | None, decibels: float | None = 144.2) -> Entry:
    files = [directory / f"{name}.pte", directory / f"{name}.index.json"]
    for file in files:
        file.write_text(name)
    return Entry(name, f"key of {name}", 3.14, 5400, decibels, files, score)


def test_a_program_has_a_line_with_seconds_size_and_agreement(tmp_path: Path) -> None:
    history = History(tmp_path, None, None)
    assert history.add(entry(tmp_path, "net.step_1", None)) == "net.step_1, 3.1 s, 5.4 kB, 144 dB"
    assert history.add(entry(tmp_path, "net.step_2", None, math.inf)) == "net.step_2, 3.1 s, 5.4 kB, exact"
    assert history.add(entry(tmp_path, "net.step_3", None, None)) == "net.step_3, 3.1 s, 5.4 kB"
    assert not history.is_new("net.step_1", "key of net.step_1")
    assert history.is_new("net.step_1", "another key")
    assert not (tmp_path / "best").exists()


@pytest.mark.parametrize(("falls", "best"), [(False, "b"), (True, "c")])
def test_the_best_is_kept_whole(tmp_path: Path, *, falls: bool, best: str) -> None:
    history = History(tmp_path, Score("metric", falls), None)
    said = [history.add(entry(tmp_path, name, score)) for name, score in (("a", 0.5), ("b", 0.75), ("c", 0.25))]
    assert [line.endswith("the best so far") for line in said] == [True, not falls, falls]
    assert "metric 0.75" in said[1]
    assert sorted(path.name for path in (tmp_path / "best").iterdir()) == [f"{best}.index.json", f"{best}.pte"]


@pytest.mark.parametrize("falls", [False, True])
@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_not_finite_is_never_the_best(tmp_path: Path, score: float, *, falls: bool) -> None:
    history = History(tmp_path, Score("metric", falls), tmp_path / "watch.html")
    said = history.add(entry(tmp_path, "diverged", score))
    assert said.endswith(f"metric {score:g}, which is no finite number, so it is not kept as the best")
    assert not (tmp_path / "best").exists()
    assert ">metric<" not in history.html()
    assert history.add(entry(tmp_path, "good", 1.0, math.nan)).endswith("the best so far")
    history.add(entry(tmp_path, "diverged again", score))
    assert sorted(path.name for path in (tmp_path / "best").iterdir()) == ["good.index.json", "good.pte"]
    page = (tmp_path / "watch.html").read_text()
    assert not {"nan", "inf"} & {*re.findall(r"\b[a-z]+\b", page)}
    assert page.count("<circle") == 3 + 3 + 2 + 1  # seconds, sizes, comparisons and one metric


def test_the_page_draws_all_values(tmp_path: Path) -> None:
    page = tmp_path / "watch.html"
    history = History(tmp_path, Score("metric", falls=False), page)
    for number in range(3):
        history.add(entry(tmp_path, f"<b>{number}", 0.1 * number, None if number == 1 else 140.0 + number))
    text = page.read_text()
    assert "<b>" not in text.replace("&lt;b&gt;", "")
    assert text.count("<polyline") == 4
    assert [name for name in ("seconds", "size", "compared with PyTorch", "metric") if f">{name}<" in text] == [
        "seconds",
        "size",
        "compared with PyTorch",
        "metric",
    ]
    assert text.count("<circle") == 3 * 3 + 2
    assert page.read_text() == History.html(history)


def test_figures_of_a_comparison(tmp_path: Path) -> None:
    path = tmp_path / "agreement.json"
    assert agreement.read_agreement(path) == {}
    for damaged in ("[", "[]", '{"forward": 1}', '{"forward": [1, "x"]}', '"text"'):
        path.write_text(damaged)
        assert agreement.read_agreement(path) == {}
    path.write_text('{"forward": [143.7, 12], "other": [null, 1]}')
    found = agreement.read_agreement(path)
    assert agreement.shown(found) == "144 dB, 13 calls"
    assert agreement.shown({"other": (None, 1)}) == "exact, 1 call"
    assert agreement.shown({}) == ""
    assert agreement.to_json(found)["other"] == {"decibels": None, "calls": 1}
