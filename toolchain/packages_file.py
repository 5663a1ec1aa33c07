"""The packages as one file, `packages.pex`, for other machines: a zip file of a site directory that Python can run.

    python3.11 packages.pex ARGUMENT...

runs Python with the packages. The first time it unpacks them below $PEX_ROOT. This module is the file's `__main__.py`.

    python3.11 packages_file.py DESCRIPTION FILE VENV

packs the packages of a virtual environment. Uses only the standard library, since it runs before there are packages.
"""

from __future__ import annotations

import functools
import hashlib
import multiprocessing
import os
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ProcessPoolExecutor
from importlib.util import cache_from_source
from pathlib import Path

PYTHON = "{}.{}".format(*sys.version_info)

DESCRIPTION = "packages.json"
"""A file beside the packages with the digest of each one."""

_PARTS = (DESCRIPTION, "__main__.py")  # what the file has beside the packages
_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip file can have
_WRITTEN = 315532800  # the same in seconds since the epoch

_TESTS = r"/tests?/|/(test_[^/]*|[^/]*_test)\.py$"
"""The paths of modules that only test a package."""


def pack(description: Path, target: Path, venv: Path) -> None:
    """Writes a packages.pex. It has no bytecode, so that any patch release of this version of Python can run it."""
    site = site_packages(venv)
    target.write_text(f"#!/usr/bin/env python{PYTHON}\n", encoding="utf-8")
    found = (path for path in site.rglob("*") if path.is_file() and path.suffix != ".pyc")
    files = [(path.relative_to(site).as_posix(), path) for path in sorted(found)]
    with zipfile.ZipFile(target, "a", zipfile.ZIP_DEFLATED) as archive:
        for name, path in [*files, (DESCRIPTION, description), ("__main__.py", Path(__file__))]:
            entry = zipfile.ZipInfo(name, _DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # Unix: the next line is a mode
            entry.external_attr = (0o100755 if path.stat().st_mode & 0o100 else 0o100644) << 16
            with path.open("rb") as source, archive.open(entry, "w", force_zip64=True) as packed:
                shutil.copyfileobj(source, packed, 1 << 20)
    target.chmod(0o755)


def unpack(packages: Path, site: Path) -> list[int]:
    """Unpacks the packages of a packages.pex on all processors. Returns the sizes of the files."""
    with zipfile.ZipFile(packages) as archive:
        members = [member for member in archive.infolist() if member.filename not in _PARTS]
    files = sorted((member for member in members if not member.is_dir()), key=lambda member: -member.file_size)
    for name in (file.filename for file in files):
        if name.startswith("/") or ".." in name.split("/"):
            sys.exit(f"{packages} has a file outside of its directory: {name}")
    for directory in {(site / file.filename).parent for file in files}:
        directory.mkdir(parents=True, exist_ok=True)
    large = sum(file.file_size > 1 << 20 for file in files)
    write = functools.partial(_write_member, packages, site)
    fork = multiprocessing.get_context("fork")  # a new process would not find this module in its file
    with ProcessPoolExecutor(os.cpu_count(), fork) as pool:  # threads would wait for each other at each small file
        for done in (pool.map(write, files[:large]), pool.map(write, files[large:], chunksize=200)):
            list(done)
    return [file.file_size for file in files]


@functools.cache
def _opened(packages: Path) -> zipfile.ZipFile:
    """Opens a file once in each process."""
    return zipfile.ZipFile(packages)


def _write_member(packages: Path, site: Path, member: zipfile.ZipInfo) -> None:
    """Unpacks a file. zipfile itself keeps neither modes nor times."""
    file = site / member.filename
    with _opened(packages).open(member) as source, file.open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
    file.chmod(0o755 if (member.external_attr >> 16) & 0o111 else 0o644)
    # The driver reads a file again that is newer than the RECORD of its distribution.
    os.utime(file, (_WRITTEN, _WRITTEN))


def make_venv(path: Path) -> Path:
    """Creates a virtual environment and returns its directory for packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(path)], check=True, stdout=subprocess.DEVNULL)
    status = (path / "bin/python").stat()
    # `launch.sh` compares it: an updated Python is no longer the one of python.json.
    (path / "interpreter.stat").write_text(f"{status.st_size} {int(status.st_mtime)}\n", encoding="utf-8")
    return site_packages(path)


def site_packages(venv: Path) -> Path:
    """Returns the directory with the packages of a virtual environment."""
    return venv / "lib" / f"python{PYTHON}" / "site-packages"


def compile_bytecode(site: Path) -> None:
    """Writes the bytecode that is not there, for all times of the sources, since no action can write its own. The
    packages' own tests, a quarter of all modules, have none: actions do not run them."""
    # Some packages contain files for other versions of Python, which do not compile. So output and status are ignored.
    # Python 3.12 and later print a page of warnings about texts of other packages.
    command = [sys.executable, "-W", "ignore", "-m", "compileall", "-qq", "-j", "0", "-x", _TESTS]
    command += ["--invalidation-mode", "unchecked-hash", "-i", "-"]
    files = (str(file) for file in site.rglob("*.py") if not Path(cache_from_source(str(file))).exists())
    subprocess.run(command, input="\n".join(files), text=True, stdout=subprocess.DEVNULL, check=False)


def _run(packages: Path, root: Path, arguments: list[str]) -> None:
    """Runs Python with the packages of a file, which are unpacked once."""
    with zipfile.ZipFile(packages) as archive:
        digest = hashlib.sha256(archive.read(DESCRIPTION)).hexdigest()
    venv = root / f"{digest[:32]}-{PYTHON}"
    if not venv.exists():
        partial = venv.with_name(f"{venv.name}.{os.getpid()}")
        site = make_venv(partial)
        unpack(packages, site)
        compile_bytecode(site)
        try:
            partial.rename(venv)
        except OSError:  # another process was first
            shutil.rmtree(partial)
    os.execv(venv / "bin/python", [str(venv / "bin/python"), *arguments])


if __name__ == "__main__":
    if zipfile.is_zipfile(sys.argv[0]):
        _run(Path(sys.argv[0]).resolve(), Path(os.environ["PEX_ROOT"]).resolve(), sys.argv[1:])
    else:
        pack(*map(Path, sys.argv[1:]))
