"""Builds the driver's wheel. The same commit gives the same bytes in any directory, with any umask, on any day.

    python tools/build_wheel.py [DIR]        # default: dist

`tools/release.py` builds the sdist of the same files too.

A wheel contains the time and the mode of each file. The time is that of the commit, or `SOURCE_DATE_EPOCH`. Every file
is copied with the same mode before setuptools reads it. The lock pins the release of setuptools.
"""

from __future__ import annotations

import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = ("toolchain/etbuild", "toolchain/etkit", "toolchain/etplugins")
_CONTENT = ("pyproject.toml", "README.md", "LICENSE", "schemas", *_PACKAGES)


def build(directory: Path) -> Path:
    """Builds the wheel from the checked-in files, with their contents in the working tree.

    Args:
        directory: The directory for the wheel. It is created if it does not exist.

    Returns:
        The path of the wheel.
    """
    return _build(directory, ("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"), ".")


def build_sdist(directory: Path) -> Path:
    """Builds the sdist of the same files. The arguments and the result are those of `build`."""
    made = _build(
        directory, ("-c", "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])")
    )
    normalize(made, commit_time())
    return made


def normalize(archive: Path, time: int) -> None:
    """Sorts the members of a tar.gz by name, and gives each the same owner and time (seconds since 1970)."""
    with tarfile.open(archive) as read:
        members = {member.name: (member, _content(read, member)) for member in read}
    with (
        archive.open("wb") as file,
        gzip.GzipFile("", "wb", 9, file, 0) as packed,
        tarfile.open(mode="w", fileobj=packed, format=tarfile.PAX_FORMAT) as written,
    ):
        for _, (member, content) in sorted(members.items()):
            member.mtime, member.uid, member.gid, member.uname, member.gname = time, 0, 0, "", ""
            member.pax_headers = {}
            written.addfile(member, None if content is None else io.BytesIO(content))


def commit_time() -> int:
    """The time of the commit in seconds since 1970, or `SOURCE_DATE_EPOCH`."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct"))


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes | None:
    file = archive.extractfile(member) if member.isfile() else None
    return None if file is None else file.read()


def _build(directory: Path, command: tuple[str, ...], *sources: str) -> Path:
    """Runs a command of Python in a copy of the files. Its last arguments are an empty directory and `sources`."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        copied, made = Path(scratch, "sources"), Path(scratch, "made")
        made.mkdir()
        for name in _git("ls-files", *_CONTENT).splitlines():
            _copy(ROOT / name, copied / name)
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(commit_time())}
        called = [sys.executable, *command, str(made), *sources]
        subprocess.run(called, cwd=copied, env=environment, umask=0o022, stdout=subprocess.DEVNULL, check=True)
        (built,) = made.iterdir()
        return Path(shutil.copyfile(built, directory / built.name))


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
