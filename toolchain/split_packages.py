"""Makes the form of the packages for remote executors, which an action can use without unpacking all of them.

    python3.11 split_packages.py PACKAGES.pex DIRECTORY

writes
    DIRECTORY/NAME.unit                 the files of the package NAME, and the bytecode of its modules
    DIRECTORY/-at-once.unit             the files that belong to no package
    DIRECTORY/binaries/NAME/PATH        each large binary of a package: it is linked, and never copied

The bytecode is that of the interpreter that runs this. Every Python 3.11 can run it, but not every one writes the same.
Everything else depends only on the PEX file. Uses only the standard library.
"""

from __future__ import annotations

import concurrent.futures
import importlib.util
import marshal
import os
import struct
import sys
import warnings
import zipfile
from collections.abc import Iterator

from on_demand import Unit, check_python, is_executable, units

_LARGE = 1 << 20  # bytes
_BINARIES = (b"\x7fELF", b"!<arch>\n", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
"""How ELF files, static libraries and files of macOS begin."""

_UNCHECKED = 0b1
"""The flag of bytecode that stays valid whatever the time of its source is."""


def main(pex: str, directory: str) -> None:
    """Writes all units."""
    with zipfile.ZipFile(pex) as archive:
        by_unit = units(archive.namelist())
    # The largest first, so that no processor waits for it at the end.
    work = [(pex, directory, unit, names) for unit, names in sorted(by_unit.items(), key=lambda item: -len(item[1]))]
    os.makedirs(directory, exist_ok=True)
    # Unlike a pool of `multiprocessing`, this one fails if a process is killed, for example because memory is scarce.
    with concurrent.futures.ProcessPoolExecutor(_processors()) as pool:
        for _ in pool.map(_write, work):
            pass


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):  # a container may have less than the machine
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _write(work: tuple[str, str, str, list[str]]) -> None:
    pex, directory, unit, names = work
    with zipfile.ZipFile(pex) as archive:
        Unit.make(
            os.path.join(directory, f"{unit}.unit"), _files(archive, names, os.path.join(directory, "binaries", unit))
        )


def _files(archive: zipfile.ZipFile, names: list[str], binaries: str) -> Iterator[tuple[str, bytes, bool]]:
    """Writes the large binaries to a directory, and returns the other files: for each its name, its content, and
    whether it is executable."""
    for name in sorted(names):
        entry = archive.getinfo(name)
        content = archive.read(entry)
        if len(content) >= _LARGE and content.startswith(_BINARIES):
            path = os.path.join(binaries, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755), "wb") as file:
                file.write(content)
            continue
        yield name, content, is_executable(entry)
        if name.endswith(".py"):
            yield from _bytecode(name, content)


def _bytecode(name: str, source: bytes) -> Iterator[tuple[str, bytes, bool]]:
    """The bytecode of a module; nothing for a source of another version of Python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            code = compile(source, name, "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            return
    header = importlib.util.MAGIC_NUMBER + struct.pack("<L", _UNCHECKED) + importlib.util.source_hash(source)
    # Later formats of `marshal` depend on which strings the process has seen before.
    yield importlib.util.cache_from_source(name), header + marshal.dumps(code, 2), False


if __name__ == "__main__":
    check_python()
    main(*sys.argv[1:])
