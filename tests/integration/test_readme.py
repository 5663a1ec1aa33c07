"""The first target in the README has the output that the README shows."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest

from etbuild.cli import main

from .conftest import Build

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert found
    return found.group(1)


def row(file: str, shown: str) -> tuple[str, str]:
    """The size and the digest of a file. The space between them depends on the size of the index."""
    [(size, digest)] = re.findall(rf"^ *\S*{re.escape(file)} +(\d.*?B) +(\w+)$", shown, re.MULTILINE)
    return size, digest


def test_the_first_target(build: Build, capfd: pytest.CaptureFixture[str]) -> None:
    made = build(block("yaml"), model=block("python"))
    assert made.code == 0
    # The index contains the driver's digest, which changes with the driver.
    assert row("net.pte", made.out) == row("net.pte", README)
    assert main.main(["inspect", str(made.directory / "net.pte")]) == 0
    shown = capfd.readouterr().out.partition("\n\nbytes")[0]
    assert textwrap.indent(shown, "    ") in README


def test_the_wheel_without_the_lock(tmp_path: Path) -> None:
    """What pip chooses today makes the bytes that the README shows: the package pins whatever reaches them.

    Where pip chooses what the developers' environment has, such as torch, the package is taken from there.
    """
    # Without PYTHONPATH, where pip would find the driver's sources.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command: str | Path, directory: Path = tmp_path) -> str:
        done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    if subprocess.run([*pip, "download", "--no-deps", "--dest", tmp_path, "mdurl"], capture_output=True).returncode:
        pytest.skip("there is no package index")
    wheel = Path(run(sys.executable, ROOT / "tools/build_wheel.py", tmp_path).strip())
    report = tmp_path / "report.json"
    run(*pip, "install", "--dry-run", "--ignore-installed", "--report", report, wheel)
    chosen = {
        each["metadata"]["name"]: each["metadata"]["version"] for each in json.loads(report.read_text())["install"]
    }
    others = [f"{name}=={version}" for name, version in chosen.items() if installed(name) != version]

    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python = tmp_path / "venv/bin/python"
    run(*pip, "--python", python, "install", "--no-deps", "--ignore-installed", wheel, *others)
    place = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    Path(place, "others.pth").write_text(sysconfig.get_path("purelib") + "\n")

    (tmp_path / "net").mkdir()
    (tmp_path / "net/model.py").write_text(block("python"))
    (tmp_path / "net/net.yaml").write_text(block("yaml"))
    shown = run(tmp_path / "venv/bin/etbuild", "build", "net.yaml", "-o", "out", directory=tmp_path / "net")
    index = json.loads((tmp_path / "net/out/net.index.json").read_text())
    used = {name: facts["version"] for name, facts in index["inputs"]["toolchain"]["distributions"].items()}
    normalized = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in chosen.items()}
    assert used == {name: normalized[name] for name in used}
    for file in ("net.pte", "net.report.json"):
        assert row(file, shown) == row(file, README), others


def installed(name: str) -> str:
    """The version of a package in the developers' environment, or an empty text."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
