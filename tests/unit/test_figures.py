"""The figures of pages are those of the results, and not of a driver that is long gone."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks import frame, run
from tools import write_figures

ROOT = Path(__file__).resolve().parents[2]
MOST = 300
"""So many commits may lie between the code that was measured and today's, if they differ, and no release."""
KNOWN_OLD = {
    "lowering: bars",
    "lowering: edit",
    "lowering: switches",
    "lowering: memory",
    "llm: programs",
    "llm: bars",
    "llm: real size",
    "llm: lfm2, float32",
    "llm: lfm2, float32: bars",
    "llm: qwen3_5, float32",
    "llm: qwen3_5, float32: bars",
    "monorepo: bazel 4, 1000 programs, analysis",
    "monorepo: bazel 7, 1000 programs, analysis",
    "monorepo: bazel 4, 1000 programs, digests only",
    "monorepo: bazel 7, 1000 programs, digests only",
    "monorepo: bazel 4, 20 programs over 2 backbones, real driver",
    "incremental: edits",
    "incremental: plain script",
    "measured: families",
    "measured: families-of-tasks",
    "measured: mutations",
    "measured: bytes",
    "measured: fuzz",
    "measured: faults",
    "docs/kernels.md: 9180737f4b",
    "docs/scale.md: 15e640229f",
    "docs/scale.md: bed968fbb8",
    "docs/upstream.md: 4edd346f21",
    "docs/worker.md: 2e7c8d5458",
    "docs/worker.md: 4902545ecf",
}
"""Figures that have to be measured again. Their pages name the commit. Whoever measures one again removes its line."""
BY_HAND = re.compile(r"measured\sby\shand\sat\scommit\s`(\w+)`")
"""What a page says of figures that no benchmark writes into it."""


def _origins() -> dict[str, frame.Row]:
    """What is measured, with its commit, and the digest of the code if the results have it."""
    found: dict[str, frame.Row] = {}
    for path in sorted(frame.RESULTS.glob("*.json")):
        content = json.loads(path.read_text("utf-8"))
        if path.stem != write_figures.STAMPS:
            content = content.get("measured", {}) if isinstance(content, dict) else {}
        found |= {f"{path.stem}: {section}": origin for section, origin in content.items()}
    for path in sorted((ROOT / "docs").rglob("*.md")):
        commits = dict.fromkeys(BY_HAND.findall(path.read_text("utf-8")))
        found |= {f"{path.relative_to(ROOT)}: {commit}": {"commit": commit} for commit in commits}
    return found


ORIGINS = _origins()


def _git(*arguments: str) -> str | None:
    done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def _age(commit: str) -> tuple[int, list[str]]:
    """The commits since then, and the releases between."""
    if _git("cat-file", "-e", f"{commit}^{{commit}}") is None:
        if _git("rev-parse", "--is-shallow-repository") == "false":
            pytest.fail(f"there is no commit {commit}")
        pytest.skip(f"this clone has no commit {commit}")
    count = _git("rev-list", "--count", f"{commit}..HEAD")
    tags = _git("tag", "--list", "v*", "--contains", commit, "--merged", "HEAD")
    assert count is not None
    return int(count), (tags or "").split()


def _marked(name: str) -> object:
    old = pytest.mark.xfail(strict=True, raises=AssertionError, reason="to be measured again on a quiet machine")
    return pytest.param(name, marks=[old] if name in KNOWN_OLD else [])


@pytest.mark.parametrize("name", [_marked(name) for name in ORIGINS])
def test_figures_are_of_code_like_todays(name: str) -> None:
    origin = ORIGINS[name]
    commits, releases = _age(origin["commit"])
    if origin.get("code") != frame.digest():
        again = f"of {commits} commits ago, with other code: python -m benchmarks.run --only NAME --write"
        assert commits <= MOST, again
        assert not releases, f"{again}; released since then: {', '.join(releases)}"


def test_what_is_known_to_be_old_is_there() -> None:
    assert ORIGINS.keys() >= KNOWN_OLD


@pytest.mark.parametrize("path", write_figures.pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_has_the_figures_of_the_results(path: Path) -> None:
    assert path.read_text("utf-8") == write_figures.pages()[path], "python -m tools.write_figures"


def test_another_result_is_another_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in frame.RESULTS.glob("*.json*"):
        shutil.copy(path, tmp_path)
    figures = json.loads((tmp_path / "llm.json").read_text("utf-8"))
    figures["sections"]["programs"][0]["export CPU s"] = 12345.6
    (tmp_path / "llm.json").write_text(json.dumps(figures), "utf-8")
    monkeypatch.setattr(frame, "RESULTS", tmp_path)
    assert "| 12346 |" in write_figures.filled((ROOT / "docs/comparison.md").read_text("utf-8"))


def test_every_benchmark_is_in_the_table() -> None:
    commands = {one.command.split()[1] for one in run.BENCHMARKS.values()}
    scripts = {f"benchmarks.{path.parent.name}.run" for path in ROOT.glob("benchmarks/*/run.py")}
    apart = ("kernels", "registry", "remote")  # with programs that the machine may lack
    others = {f"benchmarks.{name}.run" for name in apart}
    assert commands >= scripts - others
    assert {name: run.pages(name) for name in ("zoo", "mutations", "memory")} == {
        "zoo": ["benchmarks/results/zoo.md", "docs/comparison.md"],
        "mutations": ["docs/checks.md"],
        "memory": ["benchmarks/results/memory.md"],
    }


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (None, {"zoo": False, "bazel": False, "memory": False}),
        (1, {}),
        (4, {"bazel": False, "memory": True}),
        (8, {"bazel": False, "memory": False}),
        (30, {"zoo": True, "bazel": False, "memory": False}),
    ],
)
def test_a_budget_takes_short_forms_first(budget: float | None, expected: dict[str, bool]) -> None:
    assert run.chosen(["zoo", "bazel", "memory"], budget) == expected


def test_results_of_other_sections_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "origin", lambda loaded: {"commit": "c" * 10, "code": "d", "loaded": loaded})
    frame.write(tmp_path, "net", {"one": [{"s": 1.0}], "two": [{"s": 2.0}]}, loaded=False)
    frame.write(tmp_path, "net", {"two": [{"s": 3.0}]}, loaded=True)
    found = frame.read("net", tmp_path)
    assert [row["s"] for section in ("one", "two") for row in found["sections"][section]] == [1.0, 3.0]
    assert write_figures.said(found, ["one"]) == f"Measured at commit `{'c' * 10}`."
    assert "other work" in write_figures.said(found, ["one", "two"])


def test_results_of_another_machine_do_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "origin", lambda loaded: {"commit": "c" * 10, "loaded": loaded})
    frame.write(tmp_path, "net", {"one": [{"s": 1.0}]}, loaded=False)
    monkeypatch.setattr(frame, "machine", lambda: {"processors": 64})
    frame.write(tmp_path, "net", {"two": [{"s": 2.0}]}, loaded=False)
    assert list(frame.read("net", tmp_path)["sections"]) == ["two"]


def test_a_busy_machine_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "compile_driver", lambda root: None)
    monkeypatch.setattr(frame, "git", lambda *arguments: "")
    monkeypatch.setattr(frame, "processors_of_others", lambda: 1.5)
    monkeypatch.setenv("ETBUILD_NO_SERVER", "1")
    with pytest.raises(SystemExit, match="wait until the machine is quiet"):
        frame.begin(tmp_path, loaded=False)
    frame.begin(tmp_path, loaded=True)
    frame.begin(None, loaded=False)


def test_a_driver_that_is_not_committed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "compile_driver", lambda root: None)
    monkeypatch.setattr(frame, "git", lambda *arguments: " M toolchain/etbuild/cli/main.py")
    monkeypatch.setenv("ETBUILD_NO_SERVER", "1")
    with pytest.raises(SystemExit, match="commit the driver first"):
        frame.begin(tmp_path, loaded=True)


class _Ran:
    """Stands for the commands of a benchmark, which write one file of results."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, results: Path, others: float) -> None:
        self.commands: list[list[str]] = []
        results.mkdir()
        monkeypatch.setattr(run, "RESULTS", results)
        monkeypatch.setattr(frame, "processors_of_others", lambda: others)
        monkeypatch.setattr(subprocess, "run", self._run)

    def _run(self, command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        self.commands.append(command[1:])
        if "--write" in command:
            Path(command[command.index("--write") + 1], "memory.json").write_text("new", "utf-8")
        return subprocess.CompletedProcess(command, 0)


def test_results_are_kept_if_the_machine_was_quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = _Ran(monkeypatch, tmp_path / "results", others=0.0)
    run.measure("memory", short=True, loaded=False, write=True)
    assert ran.commands[0][:4] == ["-m", "benchmarks.memory.run", "--formats", "gptq"]
    assert ran.commands[1] == ["-m", "tools.write_figures"]
    assert (tmp_path / "results/memory.json").read_text("utf-8") == "new"


def test_results_are_dropped_if_others_begin_to_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _Ran(monkeypatch, tmp_path / "results", others=1.0)
    with pytest.raises(SystemExit, match="nothing of it is kept"):
        run.measure("memory", short=False, loaded=False, write=True)
    assert not list((tmp_path / "results").iterdir())


def test_the_families_that_were_tried_are_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"family": "llama"}, {"family": "bert"}, {"family": "llama"}]
    (tmp_path / "families.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    monkeypatch.setattr(run, "RESULTS", tmp_path)
    assert run.command("families", None, False, False)[3:6] == ["--only", "llama", "bert"]
