"""Artifacts as files: each written whole, read back and hashed, and all of a build published together."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from etbuild.errors import BuildError, Problem


@dataclass(frozen=True)
class Artifact:
    """A file that was written and read back.

    Attributes:
        path: Where it is.
        kind: `program`, `named_data`, `index` or `report`.
        size: In bytes.
        sha256: In hex.
        tag: Of named data.
    """

    path: Path
    kind: str
    size: int
    sha256: str
    tag: str | None = None

    def facts(self) -> dict[str, Any]:
        """As it stands in the index."""
        facts: dict[str, Any] = {
            "file": self.path.name,
            "kind": self.kind,
            "size": self.size,
            "sha256": self.sha256,
        }
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


def publish(artifacts: list[Artifact], directory: Path) -> list[Artifact]:
    """Moves the artifacts of one build to their place, each by one atomic rename; two builds take turns.

    The index is the last one. The index of an earlier build goes first, with the files that it lists and this build
    does not make: an index never describes files of another build, and a renamed tag leaves no old file behind.

    Raises:
        BuildError: A file cannot be moved there.
    """
    with _turn(directory):
        _withdraw(directory / artifacts[-1].path.name, {artifact.path.name for artifact in artifacts})
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
    with contextlib.suppress(OSError):
        index.unlink(missing_ok=True)
        for name in listed:
            if name not in kept and Path(name).name == name:
                index.with_name(name).unlink(missing_ok=True)


def _move(artifacts: list[Artifact], directory: Path) -> list[Artifact]:
    published = []
    for artifact in artifacts:
        target = directory / artifact.path.name
        try:
            artifact.path.replace(target)
        except OSError as error:
            raise _write_error(target, error) from error
        published.append(Artifact(target, artifact.kind, artifact.size, artifact.sha256, artifact.tag))
    return published


def write(path: Path, kind: str, write_to: Callable[[BinaryIO], object], tag: str | None = None) -> Artifact:
    """Writes a file and reads it back.

    ExecuTorch's own `save` logs a failed write and goes on, so files are opened here.

    Args:
        path: The file.
        kind: The artifact's kind.
        write_to: Writes the content to an open binary file.
        tag: The artifact's tag.

    Raises:
        BuildError: It could not be written, or what can be read is not what was written.
    """
    try:
        with path.open("xb") as file:
            hashing = _HashingFile(file)
            write_to(hashing)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        read = path.read_bytes()
    except OSError as error:
        raise _write_error(path, error) from error
    digest = hashlib.sha256(read).hexdigest()
    if digest != hashing.state.hexdigest():
        raise BuildError(
            [Problem(f"{path.name}: what was read back is not what was written", hint="is the disk sound?")]
        )
    return Artifact(path, kind, len(read), digest, tag)


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
        publish([write(directory / path.name, "file", lambda file: file.write(content))], path.parent)
