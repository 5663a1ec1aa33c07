"""The project of a page: its files, and its commands, which run from top to bottom as a reader would run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import EXAMPLES
from tests.helpers.snippets import ROOT, Snippet, pattern, snippets

PRINTED = ("output of", "part of")


def command(snippet: Snippet) -> str:
    """What runs for a block: the command that prints it, or its own commands."""
    printed = [snippet.notes[kind] for kind in PRINTED if kind in snippet.notes]
    return printed[0] if printed else snippet.text if snippet.language == "sh" else ""


class Project:
    """A directory in which the commands of a page run. It has the files that README.md shows, and those of the page."""

    def __init__(self, directory: Path, page: str) -> None:
        self.directory = directory
        self.snippets = [each for each in snippets() if each.page == page]
        for each in snippets():
            if "file" in each.notes and each.page in ("README.md", page):
                self.write(each.notes["file"], each.text + "\n")
        self.write("bin/etbuild", f'#!/bin/sh\nexec "{sys.executable}" -m etbuild "$@"\n').chmod(0o755)
        self.write("bin/python", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n').chmod(0o755)
        path = f"{directory / 'bin'}:{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": path, "EXAMPLES": str(EXAMPLES), "ROOT": str(ROOT)}

    def write(self, name: str, text: str) -> Path:
        """Writes a file of the project, and returns its path."""
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        return path

    def add(self, snippet: Snippet) -> None:
        """Adds a block to the end of its file."""
        path = self.directory / snippet.notes["added to"]
        self.write(snippet.notes["added to"], f"{path.read_text('utf-8')}{snippet.text}\n")

    def run(self, command: str) -> tuple[int, str]:
        """Runs a command in the project. Returns its exit code, and what it printed to both of its streams."""
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

    def check(self, snippet: Snippet) -> None:
        """Runs the commands of a block, and compares what they print with what the block shows."""
        if snippet.before:
            code, said = self.run(f"set -e\n{snippet.before}")
            assert code == 0, f"{snippet.place}: the commands before it fail: {said}"
        if snippet.language == "sh" and not set(PRINTED) & snippet.notes.keys():
            self._check_session(snippet)
        else:
            _, said = self.run(command(snippet))
            _compare(snippet, snippet.text, said, whole="output of" in snippet.notes)

    def _check_session(self, snippet: Snippet) -> None:
        """Runs the commands. After `$ COMMAND`, the block shows what it prints."""
        if not snippet.text.startswith("$ "):
            code, said = self.run(f"set -e\n{snippet.text}")
            assert code == 0, f"{snippet.place}: {said}"
            return
        for part in re.split(r"^\$ ", snippet.text, flags=re.MULTILINE)[1:]:
            line, _, shown = part.partition("\n")
            _, said = self.run(line)
            _compare(snippet, shown, said, whole=True)


def _compare(snippet: Snippet, shown: str, said: str, whole: bool) -> None:
    if not pattern(shown, whole).search(said):
        pytest.fail(f"{snippet.place}: the page shows\n{shown}\nand this is printed:\n{said}", pytrace=False)
