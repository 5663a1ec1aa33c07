"""Two versions of the driver on one machine: they share a cache, and a lockfile says after an upgrade whether programs
have changed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from etbuild.version import VERSION

from .conftest import MANIFEST, MODEL

TOOLCHAIN = Path(__file__).parents[2] / "toolchain"
DEFAULTS = "etbuild/plan/parts.py"
NEXT = "0.9.0"
HITS = {"program": "cached"}


class Installed:
    """A version of the driver, and the cache that all versions use."""

    def __init__(self, toolchain: Path, project: Path) -> None:
        self.toolchain, self.project = toolchain, project

    def run(self, *arguments: str, expect: int = 0) -> str:
        """Runs the driver in a process of its own. Returns what it prints on standard output and standard error."""
        done = subprocess.run(
            [sys.executable, "-m", "etbuild", *arguments],
            cwd=self.project,
            env={**os.environ, "PYTHONPATH": str(self.toolchain), "ETBUILD_CACHE": ""},
            capture_output=True,
            text=True,
        )
        assert done.returncode == expect, done.stdout + done.stderr
        return done.stdout + done.stderr

    def build(self, out: str) -> dict[str, str]:
        """Builds, and returns `run` or `cached` for each step."""
        printed = self.run("build", "net.yaml", "-o", out, "--cache-dir", "cache", "--json")
        return dict(json.loads(printed[printed.index("{") :])["steps"])

    def program(self, out: str) -> bytes:
        return (self.project / out / "net.pte").read_bytes()


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """This version, which has built a program and written its lockfile."""
    project = tmp_path_factory.mktemp("project")
    (project / "net.yaml").write_text(MANIFEST, "utf-8")
    (project / "model.py").write_text(MODEL, "utf-8")
    driver = Installed(TOOLCHAIN, project)
    assert "cached" not in driver.build("old").values()
    driver.run("lock", "old", "net.lock.json", "--update")
    return driver


def upgraded(released: Installed, directory: Path, *edits: tuple[str, str, str]) -> Installed:
    """A later version: a copy of this one with another number and with edits of the form (file, old text, new text)."""
    toolchain = shutil.copytree(TOOLCHAIN, directory / "toolchain", symlinks=False)
    for name, old, new in (("etbuild/version/__init__.py", f'"{VERSION}"', f'"{NEXT}"'), *edits):
        text = (toolchain / name).read_text("utf-8")
        assert text.count(old) == 1, (name, old)
        (toolchain / name).write_text(text.replace(old, new), "utf-8")
    return Installed(toolchain, released.project)


def test_a_version_that_builds_the_same_uses_what_the_other_made(released: Installed, tmp_path: Path) -> None:
    later = upgraded(released, tmp_path)
    assert NEXT in later.run("--version")
    # The report names the version.
    assert later.build("same") == {"export": "cached", "lower": "cached", "compare": "cached", "report": "run"}
    assert later.program("same") == released.program("old")
    later.run("lock", "same", "net.lock.json")


def test_a_version_that_makes_other_bytes_builds_and_the_lockfile_tells(released: Installed, tmp_path: Path) -> None:
    default = "segment_alignment: kinds.Alignment = "
    later = upgraded(released, tmp_path, (DEFAULTS, f"{default}128", f"{default}256"))
    steps = later.build("new")
    assert steps["lower"] == "run"
    assert later.program("new") != released.program("old")

    difference = later.run("lock", "new", "net.lock.json", expect=3)
    assert "net.pte" in difference
    assert NEXT in later.run("explain", "old", "new")

    # Each version still finds its own results.
    assert released.build("old again") == later.build("new again") == HITS
    assert released.program("old again") == released.program("old")
    assert later.program("new again") == later.program("new")
