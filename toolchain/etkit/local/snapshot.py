"""One state of checkpoints that training writes again and again while a build reads them.

Recently written files are copied, and the build reads the copies. All copies are of one moment: if a file changes
meanwhile, they are made again. Other data is only checked at the end of each step, which costs nothing.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from etbuild.errors import BuildError
from etbuild.files import digests, regular_files
from etbuild.files.digests import FileState
from etbuild.key.declared import Inputs

_RECENT_SECONDS = 600  # what was written later than this ago may be written again
_QUIET_SECONDS = 0.1  # who has written a part of a file writes the next part sooner
_TRIES, _PATIENCE_SECONDS = 10, 5.0
_BLOCK, _READ = 1 << 30, 1 << 20
_OTHERWISE = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)  # the two files are on different systems

K = TypeVar("K")


def copied(inputs: Inputs, names: Iterable[str], directory: Path) -> Inputs | None:
    """The same inputs, with copies in place of data that was written a short time ago.

    Args:
        inputs: The declared inputs.
        names: The names of the data that the build reads.
        directory: A directory for the copies, which is made if it is needed.

    Returns:
        None if nothing was written a short time ago, or if there is no room for copies.

    Raises:
        BuildError: The data changes faster than it can be copied.
    """
    paths = {name: path for name in names if (path := inputs.find(name)) is not None}
    for _ in range(_TRIES):
        wait_until_quiet(paths.values())
        before = _states(paths)
        recent = [name for name, state in before.items() if _age(state) < _RECENT_SECONDS]
        if not recent:
            return None
        directory.mkdir(exist_ok=True)
        copies = {name: directory / str(number) / paths[name].name for number, name in enumerate(recent)}
        try:
            for name, copy in copies.items():
                _copy(before[name], paths[name], copy)
        except OSError:  # there may be no room: what is not copied is checked after each step
            shutil.rmtree(directory, ignore_errors=True)
            return None
        if _states(paths) == before:
            return replace(inputs, data={**inputs.data, **copies})
    changed = next(name for name, state in _states(paths).items() if before.get(name) != state)
    raise BuildError.of(
        f"`{changed}` changes faster than it can be copied",
        "write it under another name, and rename it when it is whole: `os.replace`",
    )


def wait_until_quiet(paths: Iterable[Path]) -> None:
    """Waits, for some seconds at most, until no process seems to write one of the files."""
    until = time.monotonic() + _PATIENCE_SECONDS
    named = dict(enumerate(paths))
    while any(0 <= _age(state) < _QUIET_SECONDS for state in _states(named).values()) and time.monotonic() < until:
        time.sleep(_QUIET_SECONDS / 2)


def _states(paths: Mapping[K, Path]) -> dict[K, FileState]:
    """The states of those that are there."""
    states = {}
    for name, path in paths.items():
        try:
            states[name] = FileState.of(path, os.stat(path))  # noqa: PTH116 - `FileState` has the path
        except (OSError, ValueError):
            continue
    return states


def _age(state: FileState) -> float:
    return time.time() - state.mtime_ns / 1e9


def _copy(state: FileState, source: Path, target: Path) -> None:
    """Copies a file, without copying its content where the file system can share it."""
    target.parent.mkdir(exist_ok=True)
    with regular_files.opened(source) as file, target.open("wb") as made:
        left = state.size  # it may grow as fast as it is copied
        try:
            while left and (count := os.copy_file_range(file.fileno(), made.fileno(), min(left, _BLOCK))):
                left -= count
        except OSError as error:
            if error.errno not in _OTHERWISE:
                raise
            while left and (data := file.read(min(left, _READ))):
                left -= made.write(data)
            made.flush()
        if known := digests.known().get(state):
            digests.learn_written(target, os.fstat(made.fileno()), known)
