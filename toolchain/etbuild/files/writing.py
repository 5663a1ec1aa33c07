"""Writes artifacts: each file is hashed and read back."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from etbuild.errors import BuildError
from etbuild.files import digests, regular_files
from etbuild.files.scratch import write_errors

if TYPE_CHECKING:
    from etbuild.results import ArtifactFacts

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Artifact:
    """A file that was written and read back.

    Attributes:
        directory: The directory of the build's artifacts.
        file: The name in that directory. For a shard, it begins with the directory of the shards.
        kind: `program`, `named_data`, `tokenizer`, `report`, `index` or `lowering`.
        size: The size in bytes.
        sha256: The digest in hex.
        tag: The tag, if the artifact is named data.
    """

    directory: Path
    file: str
    kind: str
    size: int
    sha256: str
    tag: str | None = None

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self.directory / self.file

    def facts(self) -> ArtifactFacts:
        """The artifact as JSON data for the index. The constructor takes the same keys."""
        facts: ArtifactFacts = {"file": self.file, "kind": self.kind, "size": self.size, "sha256": self.sha256}
        return facts if self.tag is None else {**facts, "tag": self.tag}


def write(
    directory: Path, file: str, kind: str, content: bytes | Callable[[BinaryIO], object], tag: str | None = None
) -> Artifact:
    """Writes a file and reads it back.

    ExecuTorch's own `save` only logs a failed write, so files are opened here.

    Args:
        directory: Where the build's artifacts are.
        file: The file's name there. Directories in it are made.
        kind: The artifact's kind.
        content: The content, or a function that writes it to an open binary file.
        tag: The artifact's tag.

    Raises:
        BuildError: The file cannot be written, or has other content when it is read back.
    """
    path = directory / file
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as opened:
            written = _SummedFile(opened)
            if isinstance(content, bytes):
                written.write(content)
            else:
                content(written)  # type: ignore[arg-type]
            opened.flush()
            os.fsync(opened.fileno())
        status, sha256 = path.stat(), written.sha256.hexdigest()
        same = _checksum(path) == written.checksum
    if not same:
        raise BuildError.of(f"{path.name}: the file has other content than was written", "is the disk faulty?")
    digests.learn_written(path, status, sha256)
    return Artifact(directory, file, kind, status.st_size, sha256, tag)


class _SummedFile:
    """A binary file that computes the sha256 of its content, and a checksum, which is faster to compute again."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.sha256 = hashlib.sha256()
        self.checksum = 0

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        self.checksum = zlib.crc32(data, self.checksum)
        return self.file.write(data)


def _checksum(path: Path) -> int:
    """The checksum of a file's content."""
    checksum = 0
    with regular_files.opened(path) as file:
        while block := file.read(_BLOCK):
            checksum = zlib.crc32(block, checksum)
    return checksum
