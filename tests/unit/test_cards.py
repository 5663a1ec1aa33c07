"""Model cards and catalogs of finished builds."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from etbuild import json_schema
from etbuild.cli import main
from etkit import svg
from tests.helpers.builds import make_report, write_build

Run = Callable[..., str]
ADDRESS = "https://models.example.com/v1"
METADATA = {
    "version": "1.2.0",
    "license": "Apache-2.0",
    "authors": ["Vision <vision@example.com>"],
    "description": "Names <shapes> | and `colors`",
}
DESCRIBED = {
    "forward": {
        "inputs": [{"name": "image", "layout": "nchw", "mean": [0.5], "deviation": [0.25], "range": [-2, 2]}],
        "outputs": [{"name": "scores", "labels": [f"kind {number}" for number in range(30)]}],
    }
}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_verb(*arguments: object, expect: int = 0) -> str:
        code = main.main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert code == expect, captured.out + captured.err
        return captured.out if expect == 0 else captured.err

    return run_verb


def report_of(described: Any = DESCRIBED, **more: Any) -> bytes:
    content = json.loads(make_report(100, 3, 1))
    method = content["methods"].pop("a")
    tensors = [{"dtype": "float32", "shape": [1, size], "dynamic": False} for size in (8, 30)]
    content["methods"] = {"forward": {**method, "inputs": [tensors[0]], "outputs": [tensors[1]]}}
    return json.dumps({**content, "interface": described, **more}).encode()


def add_to_index(path: Path, **more: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **more}))


@pytest.fixture
def builds(tmp_path: Path) -> Path:
    """Two variants, one of them in a folder, and what was measured of one."""
    out = tmp_path / "out"
    for name, folder in (("net", out), ("net.int8", out / "small")):
        index = write_build(folder, name, pte=name.encode(), report=report_of(), manifest={"metadata": METADATA})
        add_to_index(index, interface=DESCRIBED)
    measured = {"name": "checks/agreement/top1", "state": "passed", "detail": "mean 1 | worst 1", "measured": {}}
    results = {
        "schema": "executorch-results/v1",
        "name": "net.int8",
        "sha256": hashlib.sha256(b"net.int8").hexdigest(),
        "results": [measured],
    }
    (out / "small" / "net.int8.results.json").write_text(json.dumps(results))
    failed = {"name": "qualify/size", "state": "failed", "detail": "0.99 of base", "measured": {}}
    left = {**results, "name": "net.fp16", "qualifies": False, "results": [failed]}
    (out / "net.fp16.results.json").write_text(json.dumps(left))
    return out


def test_a_catalog_fits_its_schema_and_is_the_same_each_time(builds: Path, run: Run, tmp_path: Path) -> None:
    shown = run("catalog", builds, "--base-url", ADDRESS)
    catalog = json.loads(shown)
    assert json_schema.problems("catalog", catalog) == []
    assert run("catalog", builds, "--base-url", f"{ADDRESS}/") == shown
    written = tmp_path / "catalog.json"
    run("catalog", builds, "--base-url", ADDRESS, "-o", written)
    assert written.read_text() == shown
    first, second = catalog["programs"]
    assert (first["name"], first["variant"], second["name"], second["variant"]) == ("net", None, "net.int8", "int8")
    assert [each["url"] for each in second["files"]] == [
        f"{ADDRESS}/small/{name}" for name in ("net.int8.pte", "net.int8.weights.ptd", "net.int8.index.json")
    ]
    for each in second["files"]:
        content = (builds / each["file"]).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (each["size"], each["sha256"])
    assert first["version"] == "1.2.0"
    assert first["methods"]["forward"]["outputs"][0]["labels"][29] == "kind 29"
    assert first["methods"]["forward"]["inputs"][0]["dtype"] == "float32"


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("models", "not an address that begins with https://"),
        ("ftp://example.com/", "not an address that begins with https://"),
        ("https://", "not an address"),
        ("https://[::1", "not an address"),
        ("https://example.com/?a=b", "has a `?` or a `#`"),
        ("https://me:secret@example.com/", "has a login"),
    ],
)
def test_an_address_that_is_none(address: str, expected: str, builds: Path, run: Run) -> None:
    said = run("catalog", builds, "--base-url", address, expect=2)
    assert expected in said
    assert "secret" not in said


def test_a_build_that_was_changed_is_in_no_catalog(builds: Path, run: Run) -> None:
    (builds / "net.pte").write_bytes(b"NET")
    assert "has other content than net.index.json says" in run("catalog", builds, "--base-url", ADDRESS, expect=1)
    (builds / "net.pte").unlink()
    assert "the file net.pte is missing" in run("card", builds, expect=1)


def test_nothing_to_publish(tmp_path: Path, run: Run) -> None:
    assert "has no *.index.json" in run("card", tmp_path, expect=2)
    for folder in ("a", "b"):
        write_build(tmp_path / folder, "net")
    assert "two programs are called `net`" in run("card", tmp_path, expect=2)


def front_matter(text: str) -> Any:
    return yaml.safe_load(text.split("---\n")[1])


def test_a_card_says_what_people_ask(builds: Path, run: Run) -> None:
    assert run("card", builds, "--base-model", "acme/net", "--tag", "shapes") == f"{builds / 'README.md'}\n"
    text = (builds / "README.md").read_text()
    assert front_matter(text) == {
        "license": "apache-2.0",
        "library_name": "executorch",
        "base_model": "acme/net",
        "tags": ["executorch", "xnnpack", "shapes"],
    }
    assert "Names &lt;shapes&gt; \\| and \\`colors\\`" in text
    assert "| `net.int8` | `small/net.int8.pte`, `small/net.int8.weights.ptd` | 15 B | XnnpackBackend | 75.0% |" in text
    assert "top1: mean 1 \\| worst 1" in text
    assert "## What did not qualify" in text
    assert "| `net.fp16` | 0.99 of base |" in text
    assert "| input | 0 | image | float32 [1, 8] | layout nchw; (pixel / 255 - 0.5) / 0.25; from -2 to 2 |" in text
    assert text.count("The method `forward`:") == 1, "both programs have the same inputs and outputs"
    assert "0 kind 0, 1 kind 1" in text
    assert "and 10 more in the file NAME.index.json" in text
    assert run("card", builds, "-o", "-", "--base-model", "acme/net", "--tag", "shapes") == text


@pytest.mark.parametrize(("release", "has_call"), [("1.4.1", False), ("1.5.1", True)])
def test_a_card_shows_no_call_that_its_release_has_not(release: str, has_call: bool, tmp_path: Path, run: Run) -> None:
    index = write_build(tmp_path, "net", report=report_of())
    add_to_index(index, versions={"executorch": release, "torch": "2.13.0"})
    run("card", tmp_path)
    assert ("data_path=" in (tmp_path / "README.md").read_text()) == has_call


def test_a_card_shows_what_its_program_found(builds: Path, run: Run) -> None:
    found = svg.document(8, 8, [], hashlib.sha256(b"net.int8").hexdigest())
    (builds / "small/net.int8.svg").write_text(found)
    (builds / "net.svg").write_text(found)  # of another program, such as that before the last build
    run("card", builds)
    assert re.findall(r"!\[.*", (builds / "README.md").read_text()) == ["![What net.int8 found](small/net.int8.svg)"]


def test_a_card_is_one_of_hugging_face(builds: Path, run: Run) -> None:
    hub = pytest.importorskip("huggingface_hub")
    run("card", builds, "--pipeline-tag", "image-classification", "--language", "en")
    card = hub.ModelCard.load(builds / "README.md")
    assert card.data.license == "apache-2.0"
    assert card.data.pipeline_tag == "image-classification"
    assert card.data.language == ["en"]


@pytest.mark.parametrize(
    ("license_text", "expected"),
    [
        ("MIT", {"license": "mit"}),
        ("Zlib", {"license": "zlib"}),
        ("Z", {"license": "other", "license_name": "z"}),
        ("GPL-3.0-or-later", {"license": "gpl-3.0"}),
        ("MIT AND LicenseRef-weights", {"license": "other", "license_name": "mit-and-licenseref-weights"}),
    ],
)
def test_licenses_as_hugging_face_writes_them(
    license_text: str, expected: dict[str, str], tmp_path: Path, run: Run
) -> None:
    write_build(tmp_path, "net", manifest={"metadata": {"license": license_text}})
    front = front_matter(run("card", tmp_path, "-o", "-"))
    assert {key: front[key] for key in front if key.startswith("license")} == expected


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("time-series-prediction", "time-series-forecasting"),
        ("universal-segmentation", "image-segmentation"),
        ("audio-codec", None),
        ("depth-estimation", "depth-estimation"),
    ],
)
def test_tasks_as_hugging_face_calls_them(task: str, expected: str | None, tmp_path: Path, run: Run) -> None:
    write_build(tmp_path, "net", manifest={"model": {"huggingface": {"task": task, "config": "config.json"}}})
    assert front_matter(run("card", tmp_path, "-o", "-")).get("pipeline_tag") == expected


def test_a_variant_that_was_built_after_all_is_not_left_out(builds: Path, run: Run) -> None:
    write_build(builds / "more", "net.fp16")
    text = run("card", builds, "-o", "-")
    assert "`more/net.fp16.pte`" in text
    assert "did not qualify" not in text


def test_results_of_another_form_leave_nothing_out(builds: Path, run: Run) -> None:
    path = builds / "net.fp16.results.json"
    left = json.loads(path.read_text())
    path.write_text(json.dumps({**left, "name": "# <img src=x>"}))
    assert "img" not in run("card", builds, "-o", "-")
    odd = "a`|<img src=x>"
    path.unlink()
    (builds / f"{odd}.results.json").write_text(json.dumps({**left, "name": odd}))
    assert "| <code>a\\`\\|&lt;img src=x&gt;</code> | 0.99 of base |" in run("card", builds, "-o", "-")
    (builds / f"{odd}.results.json").rename(builds / f"{odd}.txt")
    (builds / ".old").mkdir()
    (builds / ".old" / "net.fp16.results.json").write_text(json.dumps(left))
    assert "did not qualify" not in run("card", builds, "-o", "-")


@pytest.mark.parametrize("folder", [b"bad\xff", b"a\nb", "a\u202eb".encode()])
def test_folders_with_names_that_are_no_text(folder: bytes, tmp_path: Path, run: Run) -> None:
    write_build(tmp_path / os.fsdecode(folder), "net")
    assert "has characters that are no text" in run("card", tmp_path, expect=2)
    assert "has characters that are no text" in run("catalog", tmp_path, "--base-url", ADDRESS, expect=2)


@pytest.mark.parametrize("folder", ["a`b|c", 'a"b', "a\\b", "größe 😀", "<img src=x>", "`"])
def test_folders_with_marks_of_markdown_and_python(folder: str, tmp_path: Path, run: Run) -> None:
    index = write_build(tmp_path / folder, "net", ptd=None, report=report_of())
    add_to_index(index, interface=DESCRIBED)
    text = run("card", tmp_path, "-o", "-")
    (call,) = [line for line in text.splitlines() if line.startswith("program = ")]
    (read,) = [node.value for node in ast.walk(ast.parse(call)) if isinstance(node, ast.Constant)]
    assert read == f"{folder}/net.pte"
    (row,) = [line for line in text.splitlines() if line.startswith("| `net` |") and "net.pte" in line]
    assert len(re.findall(r"(?<!\\)\|", row)) == 8
    assert "<img" not in row
    catalog = json.loads(run("catalog", tmp_path, "--base-url", ADDRESS))
    assert catalog["programs"][0]["files"][0]["file"] == f"{folder}/net.pte"


ODD = "a|b <img src=x> [x](y) ![z](w) `c` \\"


def test_texts_of_an_index_are_shown_as_they_are(tmp_path: Path, run: Run) -> None:
    described = json.loads(json.dumps(DESCRIBED))
    described["forward"]["inputs"][0] |= {"name": ODD, "layout": ODD, "unit": ODD, "meaning": ODD}
    described["forward"]["outputs"][0] |= {"name": ODD, "labels": [ODD]}
    applications = {ODD: {"library": ODD, "release": ODD, "links": [ODD]}}
    index = write_build(tmp_path, "net", report=report_of(described, applications=applications))
    add_to_index(index, interface=described, versions={"executorch": ODD, ODD: ODD})
    text = run("card", tmp_path, "-o", "-")
    assert "<img" not in text
    assert "![" not in text
    assert "[x](" not in text
    for row in (line for line in text.splitlines() if line.startswith("| ")):
        assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) in (4, 6, 7, 8), row


@pytest.mark.parametrize("words", ["- item", "1. one", "12) x", "---", "+ x", "# x", "=== ", "* x", "> x", "    x"])
def test_a_description_is_a_paragraph(words: str, tmp_path: Path, run: Run) -> None:
    write_build(tmp_path, "net", manifest={"metadata": {"description": words}})
    (shown,) = run("card", tmp_path, "-o", "-").split("# net\n\n")[1].split("\n\n")[:1]
    assert re.match(r"\\|\d+\\[.)]|&gt;|x", shown), shown


def test_the_copy_of_the_best_program_is_the_same_program(builds: Path, run: Run) -> None:
    before = run("card", builds, "-o", "-")
    shutil.copytree(builds / "small", builds / "small" / "best")
    assert run("card", builds, "-o", "-") == before
    assert "net.int8" in run("card", builds / "small" / "best", "-o", "-")
    (builds / "small" / "net.int8.index.json").unlink()
    assert "small/best/net.int8.pte" in run("card", builds, "-o", "-")


def test_a_readme_of_a_person_stays(builds: Path, run: Run) -> None:
    (builds / "README.md").write_text("# Mine\n")
    assert "`etbuild card` has not written this file" in run("card", builds, expect=2)
    assert (builds / "README.md").read_text() == "# Mine\n"


def test_results_of_other_bytes_count_for_nothing(builds: Path, run: Run) -> None:
    path = builds / "small" / "net.int8.results.json"
    path.write_text(path.read_text().replace(hashlib.sha256(b"net.int8").hexdigest(), "0" * 64))
    assert "top1" not in run("card", builds, "-o", "-")
    path.write_text("{")
    assert "top1" not in run("card", builds, "-o", "-")
