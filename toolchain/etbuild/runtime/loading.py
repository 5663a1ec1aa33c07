"""Loads the methods of a new program in ExecuTorch's runtime, as an application does when it starts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from pathlib import Path

from etbuild import backends
from etbuild.errors import BuildError
from etbuild.exception_text import summary
from etbuild.files.scratch import temporary
from etbuild.runtime import child
from etbuild.runtime.program_files import ProgramFiles
from etbuild.runtime.session import Session, register_kernels, unavailable

_LARGEST_BYTES = 1 << 29
"""Of files and planned memory: the runtime takes as much, beside what the build has."""
_NO_MEMORY = "error: 0x:21"  # the runtime's code for memory that it does not get


def check(files: ProgramFiles, methods: Collection[str]) -> None:
    """Loads methods, each in a child process, because a program that cannot be loaded may crash the runtime.

    Leaves out methods that call a backend which the runtime may not be able to load here, and those of large programs.

    Args:
        files: The files of the program.
        methods: The names of the methods, which need no kernels that the runtime does not have.

    Raises:
        BuildError: The runtime cannot load a method.
    """
    size = sum(file.stat().st_size for file in (files.program, *files.named_data))
    with temporary("load") as scratch:
        child.run(
            {
                f"loading {name}": partial(_load, _only(name, files), name, scratch.path)
                for name, method in files.facts["methods"].items()
                if name in methods
                and all(map(backends.loads_everywhere, method["delegates"]))
                and size + sum(method["memory"]) <= _LARGEST_BYTES
            }
        )


def _only(method: str, files: ProgramFiles) -> ProgramFiles:
    """The same files with the facts of one method, of which a session then loads nothing else."""
    return replace(files, facts={**files.facts, "methods": {method: files.method(method)}})


def _load(files: ProgramFiles, method: str, scratch: Path) -> None:
    """Loads a method. Runs in the child."""
    try:
        register_kernels(files)
        missing = unavailable(files)
    except ImportError:  # a package without the runtime
        return
    if missing:
        return
    try:
        Session(files, scratch).load(method)
    except RuntimeError as error:
        if _NO_MEMORY not in str(error):
            message = f"ExecuTorch's runtime cannot load the method: {summary(error)}"
            raise BuildError.at(("methods", method), message) from error
