"""Makes the form of the packages for remote executors, which an action can use without unpacking all of them.

    python3 split_packages.py VERSION PACKAGES.pex DIRECTORY
    python3 split_packages.py VERSION --files LIST DIRECTORY
    python3 split_packages.py VERSION --installed DIRECTORY VENV

writes
    DIRECTORY/NAME.unit                 the files of the package NAME, and the bytecode of its modules
    DIRECTORY/-at-once.unit             the files that belong to no package
    DIRECTORY/binaries/NAME/PATH        each large binary of a package: it is linked, and never copied
    DIRECTORY/python                    a line that ends with the name of the interpreter, such as `python3.12`

VERSION is that of the interpreter, or empty.

LIST names installed files, as `py_library` targets have them. Its lines have two words with a tab between them: `ROOT`
and a directory on Python's path; or the name of a file in the directory of runfiles, and where it is. The roots come
first. Python finds a module in the first root that has it.

The bytecode is that of the interpreter that runs this. Every patch release of its version can run it, but some would
write other bytes. Everything else depends only on the packages. Uses only the standard library.
"""

from __future__ import annotations

import base64
import concurrent.futures
import hashlib
import importlib.util
import marshal
import os
import re
import struct
import sys
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from on_demand import SHEBANG, Unit, check_python, check_version, units

_LARGE = 1 << 20  # bytes
_BINARIES = (b"\x7fELF", b"!<arch>\n", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
"""The first bytes of ELF files, static libraries and files of macOS."""

_UNCHECKED = 0b1
"""The flag of bytecode that stays valid for any time of its source."""


@dataclass
class Pex:
    """The packages in a packages.pex."""

    path: str

    @property
    def names(self) -> list[str]:
        """The names of all files in the site directory."""
        with zipfile.ZipFile(self.path) as archive:
            return archive.namelist()

    def part(self, names: list[str]) -> Pex:
        """The data with which another process can read some of the files."""
        del names
        return self

    @cached_property
    def _archive(self) -> zipfile.ZipFile:
        return zipfile.ZipFile(self.path)

    def read(self, name: str) -> tuple[bytes, bool]:
        """The content of a file, and whether it is executable."""
        entry = self._archive.getinfo(name)
        return self._archive.read(entry), bool(entry.external_attr >> 16 & 0o100)


@dataclass
class Files:
    """The packages as files of other build targets."""

    paths: dict[str, str]
    """The place of each file of the site directory."""

    made: dict[str, bytes] = field(default_factory=dict)
    """The files that no target has: the RECORD of each package, which rules_python leaves out."""

    @property
    def names(self) -> list[str]:
        """The names of all files in the site directory."""
        return [*self.paths, *self.made]

    def part(self, names: list[str]) -> Files:
        """The data with which another process can read some of the files."""
        return Files(
            {name: self.paths[name] for name in names if name in self.paths},
            {name: self.made[name] for name in names if name in self.made},
        )

    def read(self, name: str) -> tuple[bytes, bool]:
        """The content of a file, and whether it is executable."""
        if name in self.made:
            return self.made[name], False
        with open(self.paths[name], "rb") as file:
            return file.read(), bool(os.fstat(file.fileno()).st_mode & 0o100)


def listed(path: str) -> Files:
    """Reads a LIST."""
    with open(path, encoding="utf-8") as file:
        lines = [line.rstrip("\n").partition("\t")[::2] for line in file]
    roots = {name: number for number, name in enumerate(name for key, name in lines if key == "ROOT")}
    found: dict[str, tuple[int, str]] = {}
    by_root: dict[str, list[str]] = {}
    for runfile, place in lines:
        root = runfile
        while root and root not in roots:
            root = root.rpartition("/")[0]
        if not root or runfile == root or runfile.endswith(".pyc"):
            continue
        name = runfile[len(root) + 1 :]
        by_root.setdefault(root, []).append(name)
        if name not in found or roots[root] < found[name][0]:
            found[name] = (roots[root], place)
    files = Files({name: place for name, (_, place) in found.items()})
    for root, names in by_root.items():
        own = sorted(name for name in names if found[name][0] == roots[root])
        described = {name.partition("/")[0] for name in own if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)}
        if len(described) == 1 and f"{next(iter(described))}/RECORD" not in files.paths:
            files.made[f"{described.pop()}/RECORD"] = _record(files, own)
    return files


def _record(files: Files, names: list[str]) -> bytes:
    """The rows of a RECORD in the form of pip: the keys of programs hold the digests in it."""

    def row(name: str) -> str:
        with open(files.paths[name], "rb") as file:
            digest = base64.urlsafe_b64encode(hashlib.file_digest(file, "sha256").digest()).decode().rstrip("=")
        quoted = '"' + name.replace('"', '""') + '"' if re.search('[",]', name) else name
        return f"{quoted},sha256={digest},{os.path.getsize(files.paths[name])}\n"

    with concurrent.futures.ThreadPoolExecutor(_processors()) as pool:
        return "".join(pool.map(row, names)).encode()


def installed(site: str) -> Files:
    """The files of a site directory."""
    paths = (os.path.join(place, name) for place, _, names in os.walk(site) for name in names)
    return Files({os.path.relpath(path, site): path for path in paths if not path.endswith(".pyc")})


def check_tags(files: Files) -> None:
    """Exits if a package is for another version of Python than the one that runs this."""
    for name in sorted(files.paths):
        if not name.endswith(".dist-info/WHEEL"):
            continue
        tags = re.findall(r"^Tag: (\S+)", files.read(name)[0].decode(), re.MULTILINE)
        if tags and not any(_fits(tag, sys.version_info[1]) for tag in tags):
            package = name.partition(".dist-info/")[0]
            sys.exit(
                f"{package} is for {tags[0]}, and the interpreter of the toolchain is Python 3.{sys.version_info[1]} "
                f"({sys.executable}): use packages and an interpreter of one version"
            )


def _fits(tag: str, minor: int) -> bool:
    """Whether a wheel with a tag, such as `cp311-cp311-linux_x86_64` or `py2.py3-none-any`, is for Python 3.MINOR."""
    pythons, abis, _ = tag.split("-", 2)
    for python in pythons.split("."):
        match = re.fullmatch(r"(cp|py)3(\d*)", python)
        is_exact = python.startswith("cp") and not {"abi3", "none"}.intersection(abis.split("."))
        if match is not None and (int(match[2] or 0) == minor if is_exact else int(match[2] or 0) <= minor):
            return True
    return False


def main(packages: Pex | Files, directory: str) -> None:
    """Writes all units."""
    by_unit = units(packages.names)
    # The largest first, so that all processors finish at about the same time.
    work = [
        (packages.part(names), directory, unit, names)
        for unit, names in sorted(by_unit.items(), key=lambda item: -len(item[1]))
    ]
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "python"), "w", encoding="utf-8") as file:
        file.write(f"{SHEBANG}{sys.version_info[0]}.{sys.version_info[1]}\n")
    # Unlike a pool of `multiprocessing`, this one fails if a process is killed, for example because memory is scarce.
    with concurrent.futures.ProcessPoolExecutor(_processors()) as pool:
        for _ in pool.map(_write, work):
            pass


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):  # a container may have fewer processors than the machine
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _write(work: tuple[Pex | Files, str, str, list[str]]) -> None:
    packages, directory, unit, names = work
    Unit.make(
        os.path.join(directory, f"{unit}.unit"), _files(packages, names, os.path.join(directory, "binaries", unit))
    )


def _files(packages: Pex | Files, names: list[str], binaries: str) -> Iterator[tuple[str, bytes, bool]]:
    """Writes the large binaries to a directory, and returns the other files: for each its name, its content, and
    whether it is executable."""
    for name in sorted(names):
        content, executable = packages.read(name)
        if len(content) >= _LARGE and content.startswith(_BINARIES):
            path = os.path.join(binaries, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755), "wb") as file:
                file.write(content)
            continue
        yield name, content, executable
        if name.endswith(".py"):
            yield from _bytecode(name, content)


def _bytecode(name: str, source: bytes) -> Iterator[tuple[str, bytes, bool]]:
    """The bytecode of a module; empty for a source of another version of Python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            code = compile(source, name, "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            return
    header = importlib.util.MAGIC_NUMBER + struct.pack("<L", _UNCHECKED) + importlib.util.source_hash(source)
    # In later formats of `marshal`, the bytes depend on strings that the process has used before.
    yield importlib.util.cache_from_source(name), header + marshal.dumps(code, 2), False


if __name__ == "__main__":
    check_version(sys.argv[1])
    if sys.argv[2] == "--files":
        of_libraries = listed(sys.argv[3])
        check_tags(of_libraries)
        main(of_libraries, sys.argv[4])
    elif sys.argv[2] == "--installed":
        major, minor = sys.version_info[:2]
        main(installed(os.path.join(sys.argv[4], "lib", f"python{major}.{minor}", "site-packages")), sys.argv[3])
    else:
        check_python(sys.argv[2])
        main(Pex(sys.argv[2]), sys.argv[3])
