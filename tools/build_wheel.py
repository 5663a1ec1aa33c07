"""Builds the driver's wheel. The same commit gives the same bytes in any directory, with any umask, on any day.

    python tools/build_wheel.py [DIR]        # default: dist

A wheel contains the time and the mode of each file. The time is that of the commit, or `SOURCE_DATE_EPOCH`. Every file
is copied with the same mode before setuptools reads it. The lock pins the release of setuptools.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_CONTENT = ("pyproject.toml", "README.md", "LICENSE", "schemas", "toolchain/etbuild", "toolchain/etkit")


def build(directory: Path) -> Path:
    """Builds the wheel from the checked-in files, with their contents in the working tree.

    Args:
        directory: The directory for the wheel. It is created if it does not exist.

    Returns:
        The path of the wheel.
    """
    directory.mkdir(parents=True, exist_ok=True)
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct")
    with tempfile.TemporaryDirectory() as scratch:
        sources, made = Path(scratch, "sources"), Path(scratch, "made")
        for name in _git("ls-files", *_CONTENT).splitlines():
            _copy(ROOT / name, sources / name)
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
        subprocess.run([*command, str(made), str(sources)], env=environment, umask=0o022, check=True)
        (wheel,) = made.iterdir()
        return Path(shutil.copyfile(wheel, directory / wheel.name))


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target, follow_symlinks=False)
    if not target.is_symlink():
        target.chmod(0o644)


if __name__ == "__main__":
    print(build(Path(sys.argv[1] if len(sys.argv) > 1 else "dist")))
