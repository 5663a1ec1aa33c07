"""Runs the commands and the Python of the project's pages, and compares what commands print with what a page shows."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import MANIFESTS
from tests.helpers.cpp_headers import COMPILE, TENSOR, whole_header
from tests.helpers.pages import PRINTED, Project, command
from tests.helpers.snippets import Snippet, snippets


def is_run(snippet: Snippet) -> bool:
    python = snippet.language == "python" and snippet.verdict in ("run", "parsed") and "file" not in snippet.notes
    return python or snippet.verdict in PRINTED or (snippet.language == "sh" and snippet.verdict == "run")


PAGES = sorted({each.page for each in snippets() if is_run(each)})


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES)
def test_a_page(page: str, tmp_path: Path, cli_built: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    project = Project(tmp_path, page)
    run = [command(each) for each in project.snippets if is_run(each)]
    for name in MANIFESTS:
        if any(f"{name}.pte" in each for each in run):
            shutil.copytree(cli_built(name).parent, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "snippets", "__file__": str(tmp_path / "snippets.py")}
    for snippet in project.snippets:
        if "added to" in snippet.notes:
            project.add(snippet)
        elif is_run(snippet) and snippet.language == "python":
            run_python(snippet, names)
        elif is_run(snippet):
            project.check(snippet)


def run_python(snippet: Snippet, names: dict[str, object]) -> None:
    statements = ast.parse(f"{snippet.before}\n{snippet.text}", snippet.place)
    if snippet.verdict == "parsed":
        statements.body = [each for each in statements.body if isinstance(each, ast.Import | ast.ImportFrom)]
    exec(compile(statements, snippet.place, "exec"), names)


CPP = [pytest.param(each, id=each.place) for each in snippets() if each.language == "cpp" and each.verdict == "run"]


@pytest.mark.skipif(shutil.which("g++") is None, reason="compiles C++: install g++")
@pytest.mark.parametrize("snippet", CPP)
def test_cpp(snippet: Snippet, tmp_path: Path) -> None:
    """It compiles with the header of a program `net`, which has the path that the code includes."""
    for name in re.findall(r'#include "(.*)"', snippet.text):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(whole_header([TENSOR], [TENSOR]))
    (tmp_path / "main.cc").write_text(f"{snippet.before}\n{snippet.text}\n")
    command = [*COMPILE, f"-I{tmp_path}", "-fsyntax-only", str(tmp_path / "main.cc")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{snippet.place}: {done.stderr}"
