"""The script that starts the driver under Buck2 asks the packages for their Python."""

from __future__ import annotations

import os
import subprocess
import sys
import zipapp
from pathlib import Path

import pytest

LAUNCHER = Path(__file__).parents[2] / "toolchain/launch_buck2.sh"


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """An archive for `python9.9` that runs code as a PEX file does."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source/__main__.py").write_text("import sys\nassert sys.argv[1] == '-c'\nexec(sys.argv[2])\n")
    zipapp.create_archive(tmp_path / "source", tmp_path / "packages.pex", "/usr/bin/env python9.9")
    return tmp_path / "packages.pex"


def launched(packages: Path, *places: Path) -> subprocess.CompletedProcess[str]:
    main = packages.with_name("main.py")
    main.write_text("import os, sys\nprint(sys.argv[1:], os.environ['TORCHINDUCTOR_FORCE_DISABLE_CACHES'])\n")
    path = os.pathsep.join([*map(str, places), os.environ["PATH"]])
    return subprocess.run(
        ["bash", LAUNCHER, packages, main, "build", "net.yaml"],
        env={"PATH": path, "PEX_ROOT": str(packages.parent)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_python_of_the_packages_runs_the_driver(packages: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python9.9").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (tmp_path / "bin/python9.9").chmod(0o755)
    done = launched(packages, tmp_path / "bin")
    assert (done.stdout, done.stderr) == ("['build', 'net.yaml'] 1\n", "")


def test_a_missing_python_is_named(packages: Path) -> None:
    done = launched(packages)
    assert done.returncode == 1
    assert done.stderr.startswith("There is no python9.9 on this machine (PATH=")
    assert done.stderr.endswith(f"), and {packages} is for it\n")
