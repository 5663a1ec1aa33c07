"""A workspace of many programs: the queries of docs/monorepo.md, and builds with a driver that only counts."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.monorepo import run, workspace
from tests.helpers.workspaces import REPOSITORY, Workspace

PROGRAMS, BACKBONES, TEAMS = 40, 4, 10
BACKBONE = 3
"""The one that the queries name. Its programs are 3, 7, 11, ..."""


def queries() -> list[str]:
    """The queries of the page, with a team and a backbone that the workspace has."""
    page = (REPOSITORY / "docs/monorepo.md").read_text("utf-8")
    return [shlex.split(line)[2] for line in re.findall(r"^    (bazel query .*)$", page, re.MULTILINE)]


def programs(numbers: range) -> set[str]:
    return {f"//apps/team_{number % TEAMS}/p{number:04}:p{number:04}" for number in numbers}


@pytest.fixture(scope="module")
def many(
    snapshot: Path, tmp_path_factory: pytest.TempPathFactory, output_root: Path, packages: Path
) -> Iterator[Workspace]:
    directory = tmp_path_factory.mktemp("many")
    workspace.write(directory, PROGRAMS, BACKBONES, TEAMS, snapshot)
    made = Workspace(directory, output_root, packages)
    yield made
    made.stop()


def test_the_queries_find_what_they_say(many: Workspace) -> None:
    uses_backbone, uses_weights, needs_core_ml, of_team = queries()
    of_backbone = programs(range(BACKBONE, PROGRAMS, BACKBONES))
    expected = {
        uses_backbone: of_backbone,
        uses_weights: of_backbone,
        needs_core_ml: programs(range(36, 40)),
        of_team: programs(range(36, 37)),  # of team 6
    }
    for query, found in expected.items():
        done = many.bazel("query", many.override, query)
        assert set(done.stdout.split()) == found, (query, done.stderr)


def test_all_programs_are_analysed(many: Workspace) -> None:
    assert f"Analyzed {PROGRAMS} targets" in many.build("//apps/...", "--nobuild").err


def test_bazel_7_analyses_all_programs(many: Workspace, bazel7: Callable[..., Path]) -> None:
    bazel7(many.directory, "build", "//apps/...", "--nobuild")


Counted = Callable[[str], tuple[run.Bazel, Path]]


@pytest.fixture
def counted(snapshot: Path, tmp_path: Path, packages: Path) -> Iterator[Counted]:
    """Makes a small workspace with the driver that only counts: `counted(BAZEL7)`. Returns that driver's file, too."""
    made: list[run.Bazel] = []

    def make(modern: str = "") -> tuple[run.Bazel, Path]:
        directory, output_root = tmp_path / "counted", tmp_path / "root"
        workspace.write(directory, programs=4, backbones=2, teams=2, rules=snapshot)
        output_root.mkdir()
        made.append(run.Bazel(directory, output_root, packages, modern))
        return made[0], run.counting_driver(directory)

    yield make
    for bazel in made:
        bazel.stop()


EVERY = {"Plan": 4, "Export": 4, "Lower": 8, "Compare": 4, "Report": 4}


def test_the_driver_that_counts_writes_what_actions_ask_for(counted: Counted) -> None:
    bazel, driver = counted("")
    declared = str(bazel.declared(driver)["actions"])
    for words in ("4 Plan", "4 Export", "8 Lower", "4 Compare", "4 Report", "4 Page", "4 Bundle", "4 Etrecord"):
        assert words in declared.split(", ")
    built = {name: row["actions"] for name, row in run.edits(bazel, driver, *run.COUNTED).items()}
    assert built == {
        "first build": EVERY,
        "nothing": {},
        "one backbone's weights": {"Lower": 2, "Compare": 2, "Report": 2},
        "one backbone's graph": {"Export": 2, "Lower": 4, "Compare": 2, "Report": 2},
        "the driver": EVERY,
    }
    found = run.runfiles(bazel)
    assert found["scripts"] == 2 * 4  # the test, and the target that writes the lockfile
    assert found["links"] < 10 * found["scripts"]


def test_the_driver_that_counts_runs_in_bazel_7(counted: Counted) -> None:
    if not (modern := os.environ.get("BAZEL7")):
        pytest.skip("BAZEL7 does not name a Bazel 7")
    bazel, driver = counted(modern)
    bazel.declared(driver)
    assert bazel.build("//apps/...", *run.COUNTED)["actions"] == EVERY
