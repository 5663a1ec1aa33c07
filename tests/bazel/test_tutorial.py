"""The steps of docs/tutorials/bazel.md, in a workspace of the reader."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.pages import Project
from tests.helpers.snippets import starlark_file
from tests.helpers.workspaces import REPOSITORY, Workspace

PAGE = "docs/tutorials/bazel.md"
STUBS = sorted((REPOSITORY / "tests/bazel/stubs").iterdir())


@pytest.fixture
def workspace(tmp_path: Path, checkout: Workspace, output_root: Path, packages: Path) -> Iterator[Workspace]:
    (tmp_path / "third_party").mkdir()
    (tmp_path / "third_party/rules_executorch").symlink_to(checkout.directory)
    workspace = Workspace(tmp_path, output_root, packages)
    yield workspace
    workspace.stop()


@pytest.mark.long
def test_each_step(workspace: Workspace) -> None:
    """`bazel` has the options of all tests, so that it downloads nothing. It logs the actions that it runs."""
    project = Project(workspace.directory, PAGE)
    for name in ("model.py", "net.yaml"):  # of README.md
        (workspace.directory / name).unlink()
    [text] = [each.text for each in project.snippets if "executorch_repositories()" in each.text]
    stubs = "".join(f'local_repository(name = "{stub.name}", path = "{stub}")\n' for stub in STUBS)
    project.write("WORKSPACE", f"{text}\n{stubs}")
    log = workspace.output_root / "tutorial.log"
    before, after = workspace.command(), workspace.options(log)
    path = f"PATH={shlex.quote(os.environ['PATH'])}"  # without this script
    script = f'#!/bin/sh\nverb=$1\nshift\n{path} exec {shlex.join(before)} "$verb" {shlex.join(after)} "$@"\n'
    project.write("bin/bazel", script).chmod(0o755)
    for snippet in project.snippets:
        if "added to" in snippet.notes:
            project.add(snippet)
        elif snippet.language == "sh" and snippet.verdict == "run by":
            project.check(snippet)
            if snippet.before.startswith("echo"):
                ran = log.read_text("utf-8")
                assert "ExecutorchExport" in ran
                assert "ExecutorchLower" not in ran
        elif snippet.language == "starlark" and starlark_file(snippet) == "BUILD":
            assert (workspace.directory / "models/digits/BUILD").read_text("utf-8") == snippet.text + "\n"
    assert workspace.output("models/digits/package.oci/index.json").exists()
    code, said = project.run("bazel build --nobuild //...")  # the packages of the rules are no part of the workspace
    assert code == 0, said
