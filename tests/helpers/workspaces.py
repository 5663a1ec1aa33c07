"""Copies of this repository, built with a real Bazel. The packages are built once, and all copies use them."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

BAZEL = shlex.split(os.environ.get("BAZEL", "bazel"))
REPOSITORY = Path(__file__).resolve().parents[2]
# The files that a build reads. The copies contain only these, which also shows that nothing else is needed.
BUILD_FILES = (".bazelignore", ".bazelrc", "BUILD", "MODULE.bazel", "WORKSPACE")
BUILD_DIRECTORIES = ("e2e", "examples", "rules", "schemas", "toolchain", "tests/bazel")
NOT_COPIED = shutil.ignore_patterns("bazel-*", "bazel7-*", "__pycache__", "test_*.py", "conftest.py")

SHORT_LIVED = ("--host_jvm_args=-XX:TieredStopAtLevel=1", "--host_jvm_args=-XX:+UseSerialGC")
"""Options before the verb. A server that lives for minutes spends a third of its time on compiling itself otherwise."""

STEPS = ("Plan", "Export", "Lower", "Compare", "Report")
WORKERS = tuple(f"--strategy=Executorch{step}=worker" for step in STEPS)
"""The options that run the steps in persistent workers."""


@dataclass
class Result:
    """The output of one Bazel command."""

    code: int
    out: str
    err: str
    mnemonics: list[str]
    """Mnemonics of the actions that were run and did not come from a cache, without those that only copy."""
    hits: list[str]
    """Mnemonics of the actions whose outputs came from a cache, without those that only copy."""


@dataclass
class Workspace:
    """A directory that Bazel builds in."""

    directory: Path
    output_root: Path
    packages: Path

    def command(self, *arguments: str) -> list[str]:
        """Returns a Bazel command to run in the workspace's directory."""
        return [*BAZEL, *SHORT_LIVED, f"--output_user_root={self.output_root}", *arguments]

    def bazel(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs Bazel. The caller checks the exit code."""
        return subprocess.run(self.command(*arguments), cwd=self.directory, capture_output=True, text=True, check=False)

    @cached_property
    def override(self) -> str:
        """The option that makes the workspace use the packages that are already built."""
        return f"--override_repository={packages_repository(self.bazel)}={self.packages}"

    def options(self, log: Path) -> list[str]:
        """Returns the options of every command in tests. Bazel logs the actions that it runs to `log`."""
        return [
            self.override,
            f"--execution_log_json_file={log}",
            "--spawn_strategy=linux-sandbox",
            "--color=no",
            "--curses=no",
        ]

    def run(self, verb: str, *arguments: str, expect: int = 0) -> Result:
        """Runs a Bazel command and checks its exit code."""
        log = self.output_root / "execution.log"
        log.unlink(missing_ok=True)
        done = self.bazel(verb, *self.options(log), *arguments)
        assert done.returncode == expect, done.stdout + done.stderr
        return Result(done.returncode, done.stdout, done.stderr, *executed(log))

    def build(self, *arguments: str, expect: int = 0) -> Result:
        """Runs `bazel build`."""
        return self.run("build", *arguments, expect=expect)

    def output(self, path: str) -> Path:
        """Returns the path of a file that the last build made."""
        return self.directory / "bazel-bin" / path

    def write(self, path: str, text: str) -> None:
        """Writes a file of the workspace."""
        (self.directory / path).parent.mkdir(parents=True, exist_ok=True)
        (self.directory / path).write_text(text, encoding="utf-8")

    def edit(self, path: str, old: str, new: str) -> None:
        """Replaces text that occurs exactly once in a file."""
        text = (self.directory / path).read_text("utf-8")
        assert text.count(old) == 1, f"{path} has {old!r} {text.count(old)} times"
        self.write(path, text.replace(old, new))

    def stop(self) -> None:
        """Ends the workspace's Bazel server, which would otherwise live for hours."""
        self.bazel("shutdown")


def by_command_line(directory: Path, name: str, out: Path) -> bytes:
    """The program that unmodified ExecuTorch makes, which lowers all methods together with their weights."""
    command = ["build", str(directory / f"{name}.yaml"), "--no-accelerate", "--no-cache", "-o", str(out)]
    subprocess.run([sys.executable, "-m", "etbuild", *command], check=True)
    return (out / f"{name}.pte").read_bytes()


def packages_repository(bazel: Callable[..., subprocess.CompletedProcess[str]]) -> str:
    """Returns the name of the packages' repository in a workspace: that in WORKSPACE up to Bazel 6, the canonical name
    later."""
    apparent = "rules_executorch_packages"
    module = ""
    for name in ("rules_executorch", apparent):
        done = bazel("mod", "dump_repo_mapping", module)
        if done.returncode:
            return apparent
        # Java may warn first, if other processes use the same /tmp.
        module = json.loads(done.stdout[done.stdout.index("{") :])[name]
    return module


def log_entries(log: Path) -> Iterator[dict[str, Any]]:
    """The entries of an execution log, a sequence of JSON objects."""
    text, position = log.read_text("utf-8") if log.exists() else "", 0
    decoder = json.JSONDecoder()
    while position < len(text):
        entry, position = decoder.raw_decode(text, position)
        while position < len(text) and text[position].isspace():
            position += 1
        yield entry


def executed(log: Path) -> tuple[list[str], list[str]]:
    """Reads an execution log. Returns the mnemonics of actions that ran, and of cache
    hits."""
    run: list[str] = []
    hits: list[str] = []
    for entry in log_entries(log):
        cached = entry.get("remoteCacheHit") or entry.get("cacheHit")
        # Bazel 4 copies what has passed its checks, and the driver of each step is copied once.
        if entry["mnemonic"] not in ("ExecutorchPublish", "CopyDriver"):
            (hits if cached else run).append(entry["mnemonic"])
    return run, hits


@pytest.fixture(scope="session")
def packages() -> Path:
    """The packages that the driver needs, built by the repository rule in the developer's own output base."""

    def bazel(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*BAZEL, *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False)

    built = bazel("build", "//toolchain:etbuild")
    assert built.returncode == 0, built.stderr
    output_base = Path(bazel("info", "output_base").stdout.strip())
    return (output_base / "external" / packages_repository(bazel)).resolve()


@pytest.fixture(scope="session")
def output_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that Bazel writes to. Each workspace has its own directory in it."""
    return tmp_path_factory.mktemp("bazel")


@pytest.fixture(scope="session")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files that a build reads, made when the tests begin."""
    directory = tmp_path_factory.mktemp("snapshot")
    for name in BUILD_FILES:
        shutil.copy2(REPOSITORY / name, directory / name)
    for name in BUILD_DIRECTORIES:
        shutil.copytree(REPOSITORY / name, directory / name, symlinks=True, ignore=NOT_COPIED)
    return directory
