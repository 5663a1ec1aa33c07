"""The wheel of the driver is reproducible, and contains all files that the driver reads."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

BUILD = Path(__file__).parents[2] / "tools" / "build_wheel.py"


def wheel(directory: Path, umask: int, **environment: str) -> Path:
    directory.mkdir()
    command = [sys.executable, str(BUILD), str(directory)]
    subprocess.run(command, cwd=directory, umask=umask, env={**os.environ, **environment}, check=True)
    (made,) = directory.iterdir()
    return made


def test_the_wheel_is_the_same_in_other_surroundings(tmp_path: Path) -> None:
    first = wheel(tmp_path / "first", 0o022, TZ="UTC")
    second = wheel(tmp_path / "second", 0o077, TZ="TOMORROW-24", TMPDIR=str(tmp_path))
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()
    names = set(zipfile.ZipFile(first).namelist())
    assert {
        "etbuild/schemas/model.schema.json",
        "etbuild/py.typed",
        "etkit/building/plugin.json",
        "etkit/building/verbs/build.py",
        "etkit/inspection/page/page.js",
        "etkit/native/cpp/typed_program.h",
    } <= names
