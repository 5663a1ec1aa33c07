"""The queries of docs/monorepo.md, in a workspace of many programs, which are not built."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.monorepo import workspace
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
