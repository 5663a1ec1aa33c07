"""Summaries for the review of a change: what is shown of each program, and the checks as JUnit XML."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from etbuild.cli import main
from etkit.kept_results import Kept, Results
from etkit.registry.oci import summary
from tests.helpers.builds import make_report, write_build
from tests.helpers.http_server import serving

Run = Callable[..., str]
CHECKS = [{"check": "max_program_bytes", "limit": 100, "actual": 7}]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_verb(*arguments: object, expect: int = 0) -> str:
        code = main.main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert code == expect, captured.out + captured.err
        return captured.out if expect == 0 else captured.err

    return run_verb


@pytest.fixture
def builds(tmp_path: Path) -> tuple[Path, Path]:
    """Two builds: `changed` differs, `same` does not, `gone` is only in the first, and `new` only in the second."""
    before, after = tmp_path / "before", tmp_path / "after"
    for directory in (before, after):
        write_build(directory, "same", report=make_report(10, 1, 1))
    write_build(before, "changed", pte=b"12345", ptd=b"w", report=make_report(100, 1, 1))
    other = {"constant_methods": {"get_max": 9}}
    write_build(after, "changed", pte=b"1234567", ptd=b"w", report=make_report(300, 3, 1, CHECKS), manifest=other)
    write_build(before, "gone")
    write_build(after, "new")
    return before, after


def test_a_row_shows_what_has_become_of_a_program(builds: tuple[Path, Path], run: Run) -> None:
    shown = run("ci-summary", builds[1], "--before", builds[0])
    assert [line for line in shown.splitlines() if line.startswith("| `")] == [
        "| `changed` | 6 B → 8 B | 50.0% → 75.0% | 102 B → 302 B | changed |",
        "| `gone` | 14 B → - | - | - | removed |",
        "| `new` | 14 B | - | - | new |",
        "| `same` | 14 B | 50.0% | 12 B | same |",
    ]
    assert "<summary>Why `changed` changed</summary>" in shown
    assert "get_max: 8 -> 9" in shown
    assert "changed.pte size: 5 B -> 7 B (+2 bytes)" in shown
    assert "Why `same`" not in shown


def test_a_partial_build_has_removed_nothing(builds: tuple[Path, Path], run: Run) -> None:
    shown = run("ci-summary", builds[1], "--before", builds[0], "--partial")
    assert "`changed`" in shown
    assert "`gone`" not in shown


def test_a_first_build_has_nothing_to_compare_with(builds: tuple[Path, Path], run: Run) -> None:
    assert "| `changed` | 8 B | 75.0% | 302 B | new |" in run("ci-summary", builds[1])


def test_a_layout_can_be_compared_with_a_directory(builds: tuple[Path, Path], run: Run, tmp_path: Path) -> None:
    run("package", *builds[0].glob("*.index.json"), "-o", tmp_path / "layout")
    of_layout, of_directory = (
        run("ci-summary", builds[1], "--before", place) for place in (tmp_path / "layout", builds[0])
    )
    assert of_layout == of_directory


def test_json_has_the_same_facts(builds: tuple[Path, Path], run: Run) -> None:
    listed = {each["name"]: each for each in json.loads(run("ci-summary", builds[1], "--before", builds[0], "--json"))}
    assert {name: each["state"] for name, each in listed.items()} == {
        "changed": "changed",
        "gone": "removed",
        "new": "new",
        "same": "same",
    }
    assert (listed["changed"]["before"]["size"], listed["changed"]["after"]["size"]) == (6, 8)


def test_text_of_a_build_cannot_leave_its_block(tmp_path: Path, run: Run) -> None:
    for name, value in (("before", "x"), ("after", "```\n\n# heading <script>")):
        write_build(tmp_path / name, "net", manifest={"constant_methods": {"get_text": value}})
    shown = run("ci-summary", tmp_path / "after", "--before", tmp_path / "before")
    [fence] = set(re.findall(r"^(`{3,})(?:text)?$", shown, re.MULTILINE))
    assert len(fence) == 4
    assert not re.search(r"^# heading", shown, re.MULTILINE)


def test_many_differences_are_cut(tmp_path: Path, run: Run) -> None:
    for name, first in (("before", 0), ("after", 1)):
        constants = {f"get_{number}": number + first for number in range(100)}
        write_build(tmp_path / name, "net", manifest={"constant_methods": constants})
    assert "and 40 more" in run("ci-summary", tmp_path / "after", "--before", tmp_path / "before")


def cases(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for case in ET.parse(path).getroot().iter("testcase"):
        failure = case.find("failure")
        found[f"{case.get('classname')}: {case.get('name')}"] = None if failure is None else failure.text
    return found


def test_checks_and_lockfiles_become_test_cases(builds: tuple[Path, Path], run: Run, tmp_path: Path) -> None:
    (tmp_path / "locks").mkdir()
    run("lock", builds[1] / "same.index.json", tmp_path / "locks/same.lock.json", "--update")
    run("lock", builds[0] / "changed.index.json", tmp_path / "locks/changed.lock.json", "--update")
    run("ci-summary", builds[1], "--junit", tmp_path / "junit.xml", "--lockfiles", tmp_path / "locks")
    found = cases(tmp_path / "junit.xml")
    failures = {name: text for name, text in found.items() if text}
    assert sorted(found) == [
        "changed: build",
        "changed: lockfile",
        "changed: max_program_bytes: 7 (limit 100)",
        "new: build",
        "new: lockfile",
        "same: build",
        "same: lockfile",
    ]
    assert sorted(failures) == ["changed: lockfile", "new: lockfile"]
    assert "changed.pte: 5 B -> 7 B" in failures["changed: lockfile"]
    assert "there is no lockfile yet" in failures["new: lockfile"]


def test_a_summary_fails_where_a_lockfile_differs_if_asked(builds: tuple[Path, Path], run: Run, tmp_path: Path) -> None:
    (tmp_path / "locks").mkdir()
    for name in ("same", "changed", "gone"):
        run("lock", builds[0] / f"{name}.index.json", tmp_path / f"locks/{name}.lock.json", "--update")
    asked = ("--lockfiles", tmp_path / "locks", "--fail")
    said = run("ci-summary", builds[1], *asked, expect=3)
    assert "changed.lock.json: the program differs from the lockfile" in said
    assert "new.lock.json: there is no lockfile yet" in said
    assert "same.lock.json" not in said
    assert "changed" in run("ci-summary", builds[0], "--partial", *asked)
    assert "needs --lockfiles" in run("ci-summary", builds[1], "--fail", expect=2)


def test_lockfiles_need_a_place_for_the_result(builds: tuple[Path, Path], run: Run) -> None:
    assert "needs --junit" in run("ci-summary", builds[1], "--lockfiles", builds[0], expect=2)


def test_a_package_may_not_be_there_yet_but_a_registry_that_fails_is_an_error(
    builds: tuple[Path, Path], run: Run
) -> None:
    for status, code in ((404, 0), (400, 1), (403, 2)):
        with serving(lambda *asked, status=status: (200 if asked[1] == "/v2/" else status, {}, b"")) as server:
            reference = f"127.0.0.1:{server.port}/models/net:main"
            shown = run("ci-summary", builds[1], "--before-if-any", reference, expect=code)
            assert ("| `changed` | 8 B | 75.0% | 302 B | new |" in shown) == (code == 0)
            run("ci-summary", builds[1], "--before", reference, expect=code or 2)


def test_text_that_xml_cannot_hold_is_escaped(tmp_path: Path, run: Run) -> None:
    report = make_report(1, 1, 1, [{**CHECKS[0], "of": "a\x00\x1b\ufffe"}])
    write_build(tmp_path / "build", "net", report=report)
    run("ci-summary", tmp_path / "build", "--junit", tmp_path / "junit.xml")
    assert "net: max_program_bytes a\\x00\\x1b\\ufffe: 7 (limit 100)" in cases(tmp_path / "junit.xml")
    summary._case(suite := ET.Element("testsuite"), "net", "\ud800\x07", "one\x08\ntwo\x0b")
    [case] = ET.fromstring(ET.tostring(suite, encoding="utf-8"))
    assert (case.get("name"), case[0].get("message"), case[0].text) == (
        "\\ud800\\x07",
        "one\\x08",
        "one\\x08\ntwo\\x0b",
    )


def test_texts_of_results_make_no_link_and_no_image() -> None:
    kept = Kept("a[0]", "failed", "![x](y) [z](w) \\| b <img src=x>")
    shown = summary.markdown([], [Results("n`|<img src=x>", "0" * 64, [kept], False)])
    assert "| <code>n\\`\\|&lt;img src=x&gt;</code> | - | - | - | does not qualify |" in shown
    assert "| `a[0]` | \\!\\[x\\](y) \\[z\\](w) \\\\\\| b &lt;img src=x&gt; | failed |" in shown
