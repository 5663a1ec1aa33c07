"""Artifacts as files: each written whole, read back and hashed, and all of a build published together."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import Any, BinaryIO

from etbuild.errors import BuildError, Problem
from etbuild.inputs import file_digest


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
    """A directory beside the final place. `publish` moves files out of it; what is left in it goes when a build fails.

    Raises:
        BuildError: The directory cannot be made.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        staged = tempfile.TemporaryDirectory(prefix=".etbuild-", dir=directory)
    except OSError as error:
        raise _write_error(directory, error) from error
    with staged as name:
        yield Path(name)


@contextlib.contextmanager
def whole_directory(directory: Path) -> Iterator[Path]:
    """A directory that appears with everything in it, or stays as it is. What was in it before goes.

    Raises:
        BuildError: It cannot be made.
    """
    with staging(directory.parent) as staged:
        content = staged / directory.name
        content.mkdir()
        yield content
        try:
            if directory.exists():  # a build system makes the directories that it declares
                shutil.rmtree(directory)
            content.rename(directory)
        except OSError as error:
            raise _write_error(directory, error) from error


def publish(artifacts: list[Artifact], directory: Path) -> list[Artifact]:
    """Moves the artifacts of one build to their place, each by one atomic rename; two builds take turns.

    The index is the last one. The index of an earlier build goes first, with the files that it lists and this build
    does not make: an index never describes files of another build, and a renamed tag leaves no old file behind.

    Raises:
        BuildError: A file cannot be moved there.
    """
    with _turn(directory):
        _withdraw(directory / artifacts[-1].file, {artifact.file for artifact in artifacts})
        return _move(artifacts, directory)


@contextlib.contextmanager
def _turn(directory: Path) -> Iterator[None]:
    """Waits until no other process publishes in the directory."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _withdraw(index: Path, kept: set[str]) -> None:
    """Removes an index, and what it alone lists. What is not an index of ours lists nothing."""
    listed: list[str] = []
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        listed = [artifact["file"] for artifact in json.loads(index.read_bytes())["artifacts"]]
    ours = re.compile(re.escape(index.name.partition(".")[0]) + r"\.[^/]+(/[^/]+\.ptd)?")
    gone = [index, *(index.parent / name for name in listed if name not in kept and ours.fullmatch(name))]
    with contextlib.suppress(OSError):
        for path in gone:
            path.unlink(missing_ok=True)
    for directory in {path.parent for path in gone} - {index.parent}:
        with contextlib.suppress(OSError):  # another shard is in it
            directory.rmdir()


def _move(artifacts: list[Artifact], directory: Path) -> list[Artifact]:
    published = []
    for artifact in artifacts:
        target = directory / artifact.file
        try:
            target.parent.mkdir(exist_ok=True)
            artifact.path.replace(target)
        except OSError as error:
            raise _write_error(target, error) from error
        published.append(replace_fields(artifact, directory=directory))
    return published


def write(
    directory: Path, file: str, kind: str, write_to: Callable[[BinaryIO], object], tag: str | None = None
) -> Artifact:
    """Writes a file and reads it back.

    ExecuTorch's own `save` logs a failed write and goes on, so files are opened here.

    Args:
        directory: Where the build's artifacts are.
        file: The file's name there.
        kind: The artifact's kind.
        write_to: Writes the content to an open binary file.
        tag: The artifact's tag.

    Raises:
        BuildError: It could not be written, or what can be read is not what was written.
    """
    path = directory / file
    try:
        with path.open("xb") as opened:
            hashing = _HashingFile(opened)
            write_to(hashing)  # type: ignore[arg-type]
            opened.flush()
            os.fsync(opened.fileno())
        size, digest = path.stat().st_size, file_digest(path)
    except OSError as error:
        raise _write_error(path, error) from error
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


def _write_error(path: Path, error: OSError) -> BuildError:
    return BuildError([Problem(f"{path.name}: cannot write the file: {error.strerror or error}")])


def replace(path: Path, content: bytes) -> None:
    """Writes a small file whole: under another name first, then renamed.

    Raises:
        BuildError: It could not be written.
    """
    with staging(path.parent) as directory:
        publish([write(directory, path.name, "file", lambda file: file.write(content))], path.parent)
