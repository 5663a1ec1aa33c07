"""Runs the commands and the Python of the project's pages, and compares what commands print with what a page shows."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import EXAMPLES, MANIFESTS
from tests.helpers.cpp_headers import COMPILE, TENSOR, whole_header
from tests.helpers.snippets import ROOT, Snippet, pattern, snippets

PRINTED = ("output of", "part of")


def is_run(snippet: Snippet) -> bool:
    python = snippet.language == "python" and snippet.verdict in ("run", "parsed") and "file" not in snippet.notes
    return python or snippet.verdict in PRINTED or (snippet.language == "sh" and snippet.verdict == "run")


PAGES = sorted({each.page for each in snippets() if is_run(each)})


class Project:
    """A directory in which the commands of a page run. It has the files that README.md shows, and those of the page."""

    def __init__(self, directory: Path, page: str, program: Callable[[str], Path]) -> None:
        self.directory = directory
        self.snippets = [each for each in snippets() if each.page == page]
        for each in snippets():
            if "file" in each.notes and each.page in ("README.md", page):
                self.write(each.notes["file"], each.text + "\n")
        for name in MANIFESTS:
            if any(f"{name}.pte" in self.command(each) for each in self.snippets):
                shutil.copytree(program(name).parent, directory, dirs_exist_ok=True)
        self.write("bin/etbuild", f'#!/bin/sh\nexec "{sys.executable}" -m etbuild "$@"\n').chmod(0o755)
        self.write("bin/python", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n').chmod(0o755)
        path = f"{directory / 'bin'}:{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": path, "EXAMPLES": str(EXAMPLES), "ROOT": str(ROOT)}

    def write(self, name: str, text: str) -> Path:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        return path

    @staticmethod
    def command(snippet: Snippet) -> str:
        """What runs for a block: the command that prints it, or its own commands."""
        printed = [snippet.notes[kind] for kind in PRINTED if kind in snippet.notes]
        return printed[0] if printed else snippet.text if is_run(snippet) and snippet.language == "sh" else ""

    def run(self, command: str) -> tuple[int, str]:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.directory,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout


@pytest.mark.parametrize("page", PAGES)
def test_a_page(page: str, tmp_path: Path, cli_built: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    project = Project(tmp_path, page, cli_built)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "snippets", "__file__": str(tmp_path / "snippets.py")}
    for snippet in filter(is_run, project.snippets):
        if snippet.language == "python":
            run_python(snippet, names)
            continue
        if snippet.before:
            code, said = project.run(f"set -e\n{snippet.before}")
            assert code == 0, f"{snippet.place}: the commands before it fail: {said}"
        if snippet.language == "sh" and snippet.verdict == "run":
            check_session(project, snippet)
        else:
            _, said = project.run(project.command(snippet))
            compare(snippet, snippet.text, said, whole="output of" in snippet.notes)


def check_session(project: Project, snippet: Snippet) -> None:
    """Runs the commands. After `$ COMMAND`, the block shows what it prints."""
    if not snippet.text.startswith("$ "):
        code, said = project.run(f"set -e\n{snippet.text}")
        assert code == 0, f"{snippet.place}: {said}"
        return
    for part in re.split(r"^\$ ", snippet.text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        _, said = project.run(command)
        compare(snippet, shown, said, whole=True)


def compare(snippet: Snippet, shown: str, said: str, whole: bool) -> None:
    if not pattern(shown, whole).search(said):
        pytest.fail(f"{snippet.place}: the page shows\n{shown}\nand this is printed:\n{said}", pytrace=False)


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
