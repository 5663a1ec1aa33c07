"""All flags with which later versions of Bazel begin, at once. `python -m tests.bazel.flags` tries each by itself."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.workspaces import REPOSITORY
from tools.reference.starlark import Loader

from .flags import OF_BAZEL, WORKSPACES, analyse, flags

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize("workspace", WORKSPACES)
def test_the_rules_survive_all_flags_of_bazel(
    workspace: str, snapshot: Path, packages: Path, modern_bazel: Run
) -> None:
    every = flags(modern_bazel(snapshot, [], "help", "flags-as-proto").stdout)
    assert len(every) > 50
    assert analyse(modern_bazel, snapshot, workspace, packages, [each for each in every if each not in OF_BAZEL]) == ""


def test_the_other_workspace_has_each_rule() -> None:
    names = {
        name
        for file in ("defs", "cc")
        for name in Loader(REPOSITORY).load(REPOSITORY / f"rules/{file}.bzl").names
        if name.startswith("executorch_")
    }
    used = re.findall(
        r"^(executorch_\w+)\(", (REPOSITORY / "tests/bazel/outside/BUILD").read_text("utf-8"), re.MULTILINE
    )
    assert {*used} == names
