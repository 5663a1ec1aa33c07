"""Which steps `etbuild build` runs after an edit, and which it takes from the local cache."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from etbuild.cli import main
from etbuild.inputs.source_lines import SourceLines
from etbuild.plan.plan import Plan
from etbuild.report import checks
from etbuild.results import CheckResult, LoweringFacts
from etbuild.steps import export
from etkit.building import cache_upkeep
from etkit.local.cache.store import Cache

from .conftest import MANIFEST, MODEL

WITH_WEIGHTS = MANIFEST.replace('factory: "model:create"', 'factory: "model:create"\n  weights: w.safetensors')
HIT = {"program": "cached"}
ALL = {"export": "run", "lower": "run", "compare": "run", "report": "run"}
REPORT = {"export": "cached", "lower": "cached", "compare": "cached", "report": "run"}
EXPORT = {**REPORT, "export": "run", "compare": "run"}  # the comparison calls the model
COMPARE = {**REPORT, "compare": "run"}
LOWER = {**COMPARE, "lower": "run"}


class Project:
    """A program and a cache, built once."""

    def __init__(self, root: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.root, self.capfd = root, capfd
        self.cache = Cache(root / "cache")
        self.write("model.yaml", WITH_WEIGHTS)
        self.write("model.py", MODEL)
        self.weights(0.5)
        assert self.build() == ALL

    def write(self, name: str, text: str) -> None:
        (self.root / name).write_text(text, "utf-8")

    def weights(self, value: float) -> None:
        tensors = {"linear.weight": torch.full((4, 8), value), "linear.bias": torch.full((4,), value + 1)}
        save_file(tensors, self.root / "w.safetensors")

    def build(self, expect: int = 0) -> dict[str, str]:
        """Builds, and returns `run` or `cached` for each step."""
        where = ["--cache-dir", str(self.root / "cache"), "-o", str(self.root / "out"), "--json"]
        self.capfd.readouterr()
        assert main.main(["build", str(self.root / "model.yaml"), *where]) == expect
        return dict(json.loads(self.capfd.readouterr().out)["steps"]) if expect == 0 else {}

    def artifacts(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (self.root / "out").iterdir()}


@pytest.fixture
def project(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Project:
    return Project(tmp_path, capfd)


@pytest.mark.parametrize(
    ("edit", "steps"),
    [
        pytest.param(lambda p: None, HIT, id="nothing"),
        pytest.param(lambda p: p.write("model.yaml", "# A remark.\n" + WITH_WEIGHTS), HIT, id="comment"),
        pytest.param(lambda p: p.write("unused.py", "x = 1\n"), HIT, id="source that nothing imports"),
        pytest.param(
            lambda p: p.write("model.yaml", WITH_WEIGHTS + "checks: {min_delegated: 0.1}\n"), REPORT, id="check"
        ),
        pytest.param(
            lambda p: p.write("model.yaml", WITH_WEIGHTS + "checks: {compare: {work: 0}}\n"), COMPARE, id="comparison"
        ),
        pytest.param(lambda p: p.write("model.yaml", WITH_WEIGHTS + "report: {blobs: false}\n"), REPORT, id="report"),
        pytest.param(lambda p: p.write("model.py", "# A remark.\n" + MODEL), EXPORT, id="source comment"),
        pytest.param(lambda p: p.weights(0.75), LOWER, id="weights"),
        pytest.param(lambda p: p.write("model.yaml", WITH_WEIGHTS.replace("[xnnpack]", "[]")), LOWER, id="partitioner"),
        pytest.param(lambda p: p.write("model.yaml", WITH_WEIGHTS.replace("[2, 8]", "[3, 8]")), ALL, id="example"),
        pytest.param(lambda p: p.write("model.py", MODEL.replace(".relu()", ".abs()")), ALL, id="source"),
    ],
)
def test_an_edit_runs_what_it_reaches(
    project: Project, edit: Callable[[Project], object], steps: dict[str, str]
) -> None:
    edit(project)
    assert project.build() == steps
    assert project.build() == HIT
    kept = project.artifacts()
    where = ["--no-cache", "-o", str(project.root / "out")]
    assert main.main(["build", str(project.root / "model.yaml"), *where]) == 0
    assert project.artifacts() == kept


def test_a_build_that_fails_is_not_kept(project: Project) -> None:
    before = cache_upkeep.info(project.cache).records
    project.write("model.py", MODEL.replace("self.linear(x)", "self.linear(x).missing()"))
    project.build(expect=1)
    assert cache_upkeep.info(project.cache).records == before
    project.write("model.py", MODEL)
    project.write("model.yaml", WITH_WEIGHTS + "checks: {max_program_bytes: 1}\n")
    project.build(expect=3)
    assert cache_upkeep.info(project.cache).records == before


def test_an_export_from_the_cache_still_knows_its_lines(project: Project) -> None:
    operator = "torch.linalg.eigh(self.linear(x) @ x.T[:4])[0]"
    failing = MODEL.replace("self.linear(x).relu()", operator)
    for source, number in ((failing, 9), (failing, 9), ("# A remark.\n" + failing, 10)):
        project.write("model.py", source)
        project.build(expect=1)
        assert f"at model.py:{number}, in forward: `return {operator}`" in project.capfd.readouterr().err


def test_notes_are_in_the_report_and_are_told_again_by_hits(project: Project) -> None:
    """Those of the export are in the report, and those of the comparison beside it."""
    project.write("model.py", MODEL.replace("return self.linear", "x[0] = 0.0\n        return self.linear"))
    command = ["build", str(project.root / "model.yaml"), "--cache-dir", str(project.root / "cache")]
    said = []
    for checks_of_size in ("", "", ", max_program_bytes: 99999"):  # at last, all but the report comes from the cache
        project.write("model.yaml", MANIFEST + f"checks: {{compare: {{leave_out: a test}}{checks_of_size}}}\n")
        project.capfd.readouterr()
        assert main.main([*command, "-o", str(project.root / "out")]) == 0
        said.append([line for line in project.capfd.readouterr().err.splitlines() if line.startswith("note: ")])
    in_report = json.loads((project.root / "out/net.report.json").read_bytes())["notes"]
    assert [each.partition(":")[0] for each in in_report] == ["`forward` writes to its input `x`"]
    assert said == [["note: `forward` was not compared with PyTorch: a test", f"note: {in_report[0]}"]] * 3
    assert main.main([*command, "-o", str(project.root / "stages"), "--stop-after", "export"]) == 0
    assert f"note: {in_report[0]}\n" in project.capfd.readouterr().err


def test_a_tokenizer_that_changes_at_the_end_is_not_kept(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The export and lowering come from the cache, so only the report reads a file that the plan names."""
    project.write("model.yaml", WITH_WEIGHTS + "tokenizer: tokenizer.json\n")
    project.write("tokenizer.json", "old")
    os.utime(project.root / "tokenizer.json", (0, 0))  # else the build would read a copy
    measure = checks.measure

    def changed(plan: Plan, lowering: LoweringFacts, lines: SourceLines) -> list[CheckResult]:
        project.write("tokenizer.json", "new")
        return measure(plan, lowering, lines)

    with monkeypatch.context() as patch:
        patch.setattr(checks, "measure", changed)
        project.build(expect=1)
    assert "`tokenizer.json` changed during the build" in project.capfd.readouterr().err
    project.write("tokenizer.json", "old")
    assert project.build() == REPORT
    assert (project.root / "out/net.tokenizer/tokenizer.json").read_text() == "old"


@pytest.mark.parametrize("age", ["old", "new"])
def test_weights_that_change_during_a_build_do_not_mix(
    age: str, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old ones are noticed, also if the edit restores the size and the time of the file. The build has copies of new
    ones, so it makes the program that it began with."""
    project.write("model.py", MODEL + "# again\n")
    project.build()
    first = (project.root / "out/net.pte").read_bytes()
    project.write("model.yaml", WITH_WEIGHTS + "checks: {compare: {leave_out: again}}\n")
    project.write("model.py", MODEL + "# and again\n")
    weights, run = project.root / "w.safetensors", export.export
    if age == "old":
        os.utime(weights, (0, 0))

    def changed(*arguments: Any) -> Any:
        process = run(*arguments)
        before = weights.stat()
        project.weights(0.25)
        assert weights.stat().st_size == before.st_size
        os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
        return process

    with monkeypatch.context() as patch:
        patch.setattr(export, "export", changed)
        project.build(expect=1 if age == "old" else 0)
    said = project.capfd.readouterr().err
    assert ("`w.safetensors` changed during the build" in said) == (age == "old")
    if age == "new":
        assert (project.root / "out/net.pte").read_bytes() == first


def test_a_download_that_ends_during_a_build_is_noticed(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that arrives wins over the one that the key holds."""
    (project.root / "net").mkdir()
    torch.save(load_file(project.root / "w.safetensors"), project.root / "net/pytorch_model.bin")
    project.write("model.yaml", WITH_WEIGHTS.replace("w.safetensors", "net"))
    project.write("model.py", MODEL + "# again\n")
    run = export.export

    def arriving(*arguments: Any) -> Any:
        process = run(*arguments)
        (project.root / "w.safetensors").rename(project.root / "net/model.safetensors")
        return process

    with monkeypatch.context() as patch:
        patch.setattr(export, "export", arriving)
        project.build(expect=1)
    assert "the files of `net` changed during the build" in project.capfd.readouterr().err


def test_a_cache_that_cannot_be_used_is_an_error_if_it_is_named_and_a_note_if_not(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, out = str(project.root / "model.yaml"), ["-o", str(project.root / "out")]
    in_the_way = project.root / "model.py"
    assert main.main(["build", manifest, "--cache-dir", str(in_the_way), *out]) == 2
    assert "cannot be used as a cache" in project.capfd.readouterr().err
    monkeypatch.setenv("ETBUILD_CACHE_DIR", str(in_the_way))
    assert main.main(["build", manifest, *out]) == 0
    assert "note: building without a cache" in project.capfd.readouterr().err


def test_what_a_pass_changes_in_a_library_does_not_reach_the_next_steps(project: Project) -> None:
    """Whether a method comes from the cache must not change what merges it."""
    project.write("model.yaml", WITH_WEIGHTS + 'passes: {edge: ["changes:edge"]}\n')
    code = "import warnings\n\ndef edge(method, program):\n    warnings.of_a_pass = True\n    return []\n"
    project.write("changes.py", code)
    project.build()
    assert not hasattr(warnings, "of_a_pass")
