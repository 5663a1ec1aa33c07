"""Variants that qualify are kept; others are left out, with the reason."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import etbuild
from etbuild.cli import main
from etbuild.errors import CheckError

EXAMPLE = Path(__file__).parents[2] / "examples" / "samples"
MODEL = """\
import torch


class Half(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x.half()).float()


def create(half=False):
    torch.manual_seed(0)
    net = torch.nn.Sequential(Half(32, 64) if half else torch.nn.Linear(32, 64))
    return net.half() if half else net


def near(expected, actual, most):
    return float((expected[0] - actual[0]).abs().max() < most)
"""
MANIFEST = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
defaults: {partitioners: [xnnpack]}
methods: {forward: {example_inputs: [{shape: [1, 32]}]}}
variants:
  int8:
    defaults: {quantize: {torchao: [{config: 8da8w}]}}
    qualify: {size: {at_most: 0.8, of: base}, memory: {at_most: 1, of: base}, sqnr: {at_least: 25}}
  same:
    report: {operators: false}
    qualify: {size: {at_most: 0.95, of: int8}}
"""


@pytest.fixture
def build(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Any:
    """Builds the manifest with options. Returns what it prints, and its errors."""
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "net.yaml").write_text(MANIFEST)

    def run(*options: str, expect: int = 0) -> tuple[str, str]:
        capfd.readouterr()
        where = ["-o", str(tmp_path / "out"), "--cache-dir", str(tmp_path / "cache")]
        code = main.main(["build", str(tmp_path / "net.yaml"), *where, *options])
        captured = capfd.readouterr()
        assert code == expect, captured.out + captured.err
        return captured.out, captured.err

    return run


def files(directory: Path) -> set[str]:
    """The names of the files in a directory; nothing hidden may be left."""
    return {path.name for path in directory.rglob("*")}


OF_NET = {"net.pte", "net.report.json", "net.index.json"}
OF_INT8 = {"net.int8.pte", "net.int8.report.json", "net.int8.index.json", "net.int8.results.json"}


def test_what_does_not_qualify_is_left_out_and_said(build: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    said, _ = build("--variant", "all")
    assert files(out) == OF_NET | OF_INT8 | {"net.same.results.json"}
    assert "left out: net.same (size: " in said
    assert "of `net.int8`" in said
    assert "`at_most` is 0.95)" in said
    results = json.loads((out / "net.same.results.json").read_text())
    assert results["qualifies"] is False
    assert [(each["name"], each["state"]) for each in results["results"]] == [("qualify/size", "failed")]
    facts = {each["name"]: each for each in json.loads(build("--variant", "all", "--json")[0])}
    assert facts["net.int8"]["qualifies"] is True
    assert facts["net.int8"]["steps"] == {"program": "cached"}
    names = [each["name"] for each in facts["net.int8"]["results"]]
    assert names == ["qualify/size", "qualify/memory", "qualify/sqnr/forward"]
    assert "artifacts" not in facts["net.same"]
    assert not facts["net.same"]["qualifies"]
    assert "qualifies" not in facts["net"]


def test_an_older_program_of_a_variant_that_no_longer_qualifies_is_removed(build: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    build("--variant", "all", "--html")
    assert OF_INT8 | {"net.int8.report.html"} <= files(out)
    kept = out / "net.int8.notes.txt"
    kept.write_text("mine")
    (tmp_path / "net.yaml").write_text(MANIFEST.replace("at_most: 0.8", "at_most: 0.1"))
    _, errors = build("--variant", "all")
    assert "note: removed net.same.pte" not in errors, "there were only results"
    assert files(out) == OF_NET | {"net.report.html", "net.int8.results.json", "net.same.results.json", kept.name}
    assert "note: removed net.int8.pte of an earlier build" in errors


def test_a_variant_that_the_command_names_must_qualify(build: Any, tmp_path: Path) -> None:
    build("--variant", "int8")
    assert files(tmp_path / "out") == OF_INT8, "the base is only built to compare with it"
    said, errors = build("--variant", "same", expect=3)
    assert not said
    line = MANIFEST.split("\n").index("    qualify: {size: {at_most: 0.95, of: int8}}") + 1
    assert f"net.yaml:{line}:" in errors
    assert "net.same does not qualify: size: " in errors
    assert "net.same.pte" not in files(tmp_path / "out")
    with pytest.raises(CheckError, match=r"net\.same does not qualify"):
        etbuild.load(tmp_path / "net.yaml", variant="same").build(tmp_path / "own", cache=False)
    assert "net.same.pte" not in files(tmp_path / "own")


def test_a_filter_selects_results_of_what_qualifies(
    build: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    build("--variant", "int8")
    command = ["test", str(tmp_path / "net.yaml"), "--cache-dir", str(tmp_path / "cache"), "--json", "--variant"]

    def names(*options: str, expect: int = 0) -> list[str]:
        capfd.readouterr()
        assert main.main([*command, *options]) == expect
        said = capfd.readouterr().out
        return [each["name"] for each in json.loads(said)["tests"]] if said else []

    every = ["qualify/size", "qualify/memory", "qualify/sqnr/forward"]
    assert names("int8", "--filter", "qualify/*") == every
    assert names("int8", "--filter", "qualify") == every
    assert names("int8", "--filter", "qualify/s*") == ["qualify/size", "qualify/sqnr/forward"]
    assert names("int8", "--filter", "*/forward") == ["qualify/sqnr/forward"]
    assert names("int8", "--filter", "qualify/none", expect=2) == []
    assert names("same", "--filter", "qualify/sqnr/*", expect=2) == []


def test_a_failure_of_one_variant_does_not_stop_the_others(build: Any, tmp_path: Path) -> None:
    broken = "  broken: {methods: {forward: {entry: no_such}}}\n"
    (tmp_path / "net.yaml").write_text(MANIFEST.replace("variants:\n", f"variants:\n{broken}"))
    said, errors = build("--variant", "all", expect=2)
    assert files(tmp_path / "out") >= OF_NET | OF_INT8
    assert "failed: net.broken" in said
    assert "(in the program net.broken)" in errors
    assert "left out: net.same" in said
    facts = {each["name"]: each for each in json.loads(build("--variant", "all", "--json", expect=2)[0])}
    assert "no_such" in facts["net.broken"]["error"]
    assert "artifacts" in facts["net.int8"]


def test_without_its_base_a_variant_is_not_written(build: Any, tmp_path: Path) -> None:
    text = MANIFEST.replace("forward: {", "forward: {entry: no_such, ").replace(
        "    defaults: {quantize", "    methods: {forward: {entry: forward}}\n    defaults: {quantize"
    )
    (tmp_path / "net.yaml").write_text(text)
    _, errors = build("--variant", "int8", expect=2)
    assert "(in the program net)" in errors
    assert "net.int8.pte" not in files(tmp_path / "out")


def test_a_callable_judges_and_float16_is_compared_with_float32(build: Any, tmp_path: Path) -> None:
    half = """\
  half:
    model: {kwargs: {half: true}, dtype: float16}
    qualify:
      agreement: {measure: "model:near", kwargs: {most: MOST}, method: forward, min_worst: 1}
"""
    (tmp_path / "inputs").mkdir()
    shutil.copy(EXAMPLE / "pictures/bar-0.ppm", tmp_path / "inputs/a.ppm")
    loader = "\n\ndef load(path):\n    return torch.linspace(-1, 1, 32).reshape(1, 32)\n"
    (tmp_path / "model.py").write_text(MODEL + loader)
    head = MANIFEST.partition("variants:")[0].replace("example_inputs: [{shape: [1, 32]}]", "samples: inputs")
    head += 'samples: {inputs: {files: "inputs/*.ppm", loader: "model:load"}}\nvariants:\n'
    for most, expected in (("0.01", True), ("0.0", False)):
        (tmp_path / "net.yaml").write_text(head + half.replace("MOST", most))
        facts = {each["name"]: each for each in json.loads(build("--variant", "all", "--json")[0])}
        assert facts["net.half"]["qualifies"] is expected
        [result] = facts["net.half"]["results"]
        assert result["name"] == "qualify/agreement/model:near"


def test_pages_and_summaries_show_the_results(build: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    build("--variant", "all", "--html")
    page = (out / "net.int8.report.html").read_text()
    assert "<h3>Results</h3>" in page
    assert "qualify/<wbr>sqnr/<wbr>forward" in page
    assert "SQNR" in page, "the note of the comparison"
    assert "<h3>Results</h3>" not in (out / "net.report.html").read_text()
    capfd.readouterr()
    assert main.main(["ci-summary", str(out)]) == 0
    summary = capfd.readouterr().out
    assert "| `net.same` | - | - | - | does not qualify |" in summary
    assert "| `net.int8` | `qualify/size` |" in summary
    cache = ["--cache-dir", str(tmp_path / "cache")]
    assert main.main(["test", str(tmp_path / "net.yaml"), "--results", str(out), *cache]) == 0
    assert main.main(["inspect", str(out / "net.pte"), "--html", str(out / "page.html")]) == 0
    assert "forward/<wbr>example" in (out / "page.html").read_text()
    capfd.readouterr()
    assert main.main(["ci-summary", str(out), "--json"]) == 0
    shown = {each["name"]: each for each in json.loads(capfd.readouterr().out)}
    assert "forward/example" in [each["name"] for each in shown["net"]["results"]]
    (out / "net.pte").write_bytes((out / "net.int8.pte").read_bytes())
    assert main.main(["inspect", str(out / "net.pte"), "--html", str(out / "page.html")]) == 0
    assert "<h3>Results</h3>" not in (out / "page.html").read_text(), "the results are those of other bytes"


def test_the_example_has_a_variant_that_qualifies_and_one_that_does_not(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    where = ["-o", str(tmp_path / "out"), "--cache-dir", str(tmp_path / "cache")]
    assert main.main(["build", str(EXAMPLE / "choice.yaml"), "--variant", "all", "--json", *where]) == 0
    facts = {each["name"]: each for each in json.loads(capfd.readouterr().out)}
    assert {name: each.get("qualifies") for name, each in facts.items()} == {
        "choice": None,
        "choice.int8": True,
        "choice.fp16": False,
    }
    failed = [each["name"] for each in facts["choice.fp16"]["results"] if each["state"] == "failed"]
    assert failed == ["qualify/size"]
