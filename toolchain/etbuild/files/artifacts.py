"""Artifacts as files: each written whole, read back and hashed, and all of a build published together."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import Any, BinaryIO

from etbuild.errors import BuildError, Problem, system_error
from etbuild.files.digests import file_digest
from etbuild.files.directories import Folder
from etbuild.files.scratch import HIDDEN, Scratch, write_error

_INDEX_BYTES = 1 << 26  # of an index that is believed; a thousand times what a large one has


@dataclass(frozen=True)
class Artifact:
    """A file that was written and read back.

    Attributes:
        directory: Where the build's artifacts are.
        file: Its name there; of a shard with the shards' own directory in front.
        kind: `program`, `named_data`, `report`, `index` or `lowering`.
        size: In bytes.
        sha256: In hex.
        tag: Of named data.
    """

    directory: Path
    file: str
    kind: str
    size: int
    sha256: str
    tag: str | None = None

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.directory / self.file

    def facts(self) -> dict[str, Any]:
        """As it stands in the index, which the constructor takes by name."""
        facts: dict[str, Any] = {"file": self.file, "kind": self.kind, "size": self.size, "sha256": self.sha256}
        return facts if self.tag is None else {**facts, "tag": self.tag}


@contextlib.contextmanager
def staging(directory: Path) -> Iterator[Path]:
    """A directory beside the final place, out of which `publish` moves files. It is removed with what is left in it.

    If the build is killed, the next one removes it.

    Raises:
        BuildError: The directory cannot be made; there are no locks, which `publish` needs; or what is done meanwhile
            meets a full disk or the like.
    """
    with _beside(directory) as staged:
        with contextlib.suppress(BlockingIOError), _turn(directory, fcntl.LOCK_SH | fcntl.LOCK_NB):
            pass
        yield staged


@contextlib.contextmanager
def _beside(directory: Path) -> Iterator[Path]:
    """A directory beside the final place, which removes itself."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        staged = Scratch(directory, HIDDEN)
    except OSError as error:
        raise write_error(directory, error) from error
    with staged, system_errors():
        yield staged.path


@contextlib.contextmanager
def system_errors() -> Iterator[None]:
    """Where a disk is full or a limit is reached, a build says that, whichever library meets it.

    Raises:
        BuildError: Something of the kind has happened.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        known = system_error(error)
        if known is None:
            raise
        raise known from error


@contextlib.contextmanager
def whole_directory(directory: Path) -> Iterator[Path]:
    """A directory that appears with everything in it, or stays as it is. What was in it before goes.

    Raises:
        BuildError: It cannot be made, or a file or a link is in its place.
    """
    with _beside(directory.parent) as staged:
        content = staged / "content"
        content.mkdir()
        yield content
        try:
            with Folder.at(directory.parent) as parent, Folder.at(staged) as own:
                _set_aside(parent, directory.name, own)
                own.move(content.name, parent, directory.name)
        except OSError as error:
            raise write_error(directory, error) from error


def _set_aside(parent: Folder, name: str, staged: Folder) -> None:
    """Moves a directory, which may be missing, to where it is removed: at its name it is whole, or not there."""
    try:
        parent.enter(name).close()
        parent.move(name, staged, "before")
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno != errno.EXDEV:  # overlayfs does not move directories of a lower layer
            raise
        parent.remove_tree(name)


def publish(artifacts: list[Artifact], directory: Path) -> list[Artifact]:
    """Moves the artifacts of one build to their place, each by one atomic rename; two builds take turns.

    The index is the last one. The index of an earlier build goes first, with the files that it lists and this build
    does not make: an index never describes files of another build, and a renamed tag leaves no old file behind.
    No link in the directory is followed.

    Raises:
        BuildError: A file cannot be moved there.
    """
    with _turn(directory, fcntl.LOCK_EX) as place:
        _withdraw(place, artifacts[-1].file, {artifact.file for artifact in artifacts})
        for artifact in artifacts:
            _move(artifact, place)
    return [replace_fields(artifact, directory=directory) for artifact in artifacts]


@contextlib.contextmanager
def _turn(directory: Path, kind: int) -> Iterator[Folder]:
    """The directory, while it is locked against other processes that publish in it."""
    with contextlib.ExitStack() as held:
        try:
            place = held.enter_context(Folder.at(directory))
        except OSError as error:
            raise write_error(directory, error) from error
        try:
            held.enter_context(place.locked(kind))
        except BlockingIOError:
            raise
        except OSError as error:
            message = f"{directory}: cannot be locked against other builds: {error.strerror}"
            raise BuildError([Problem(message, hint="write to a directory of a local file system")]) from error
        yield place


def _withdraw(place: Folder, index: str, kept: set[str]) -> None:
    """Removes an index, and of its program's files those that it alone lists.

    Raises:
        BuildError: The index cannot be removed.
    """
    gone = _listed(place, index) - kept
    try:
        place.remove(index)
    except OSError as error:
        raise write_error(place.path / index, error) from error
    for name in sorted(gone):
        with contextlib.suppress(OSError), place.holder(name) as (folder, file):
            folder.remove(file)
    for parent in {name.partition("/")[0] for name in gone if "/" in name}:
        with contextlib.suppress(OSError):  # another shard is in it
            place.remove_empty(parent)


def _listed(place: Folder, index: str) -> set[str]:
    """The files of a program that its index lists, by names that artifacts have: a manifest or a source may lie beside.

    What is not an index of ours lists nothing.
    """
    artifact = r"\.(pte|[\w-]+\.ptd|[\w-]+/[\w-]+\.ptd|(report|lowering)\.json)"
    ours = re.compile(re.escape(index.partition(".")[0]) + artifact, re.ASCII)
    try:
        with place.open(index) as file:
            artifacts = json.loads(file.read(_INDEX_BYTES))["artifacts"]
        names = [artifact["file"] for artifact in artifacts]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return set()
    return {name for name in names if isinstance(name, str) and ours.fullmatch(name)}


def _move(artifact: Artifact, place: Folder) -> None:
    try:
        place.make_parents(artifact.file)
        with (
            Folder.at(artifact.directory) as made,
            made.holder(artifact.file) as (source, name),
            place.holder(artifact.file) as (target, _),
        ):
            source.move(name, target, name)
    except OSError as error:
        raise write_error(place.path / artifact.file, error) from error


def write(
    directory: Path, file: str, kind: str, write_to: Callable[[BinaryIO], object], tag: str | None = None
) -> Artifact:
    """Writes a file and reads it back.

    ExecuTorch's own `save` logs a failed write and goes on, so files are opened here.

    Args:
        directory: Where the build's artifacts are.
        file: The file's name there. Directories in it are made.
        kind: The artifact's kind.
        write_to: Writes the content to an open binary file.
        tag: The artifact's tag.

    Raises:
        BuildError: It could not be written, or what can be read is not what was written.
    """
    path = directory / file
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as opened:
            hashing = _HashingFile(opened)
            write_to(hashing)  # type: ignore[arg-type]
            opened.flush()
            os.fsync(opened.fileno())
        size, digest = path.stat().st_size, file_digest(path)
    except OSError as error:
        raise write_error(path, error) from error
    if digest != hashing.state.hexdigest():
        raise BuildError(
            [Problem(f"{path.name}: what was read back is not what was written", hint="is the disk sound?")]
        )
    return Artifact(directory, file, kind, size, digest, tag)


class _HashingFile:
    """A binary file that hashes what passes through."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.state = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.state.update(data)
        return self.file.write(data)


def replace(path: Path, content: bytes) -> None:
    """Writes a small file whole: under another name first, then renamed.

    Raises:
        BuildError: It could not be written.
    """
    with _beside(path.parent) as directory:
        written = write(directory, path.name, "file", lambda file: file.write(content))
        try:
            written.path.replace(path)
        except OSError as error:
            raise write_error(path, error) from error
