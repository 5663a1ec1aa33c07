"""Writes artifacts: each file is hashed and read back."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from etbuild.errors import BuildError
from etbuild.files import digests, regular_files
from etbuild.files.copying import at_once, copy_part
from etbuild.files.scratch import write_errors

if TYPE_CHECKING:
    from etbuild.results import ArtifactFacts

_BLOCK = 1 << 20
_SMALL = 1 << 24  # bytes: for less, threads save nothing


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
            written = WrittenFile(opened)
            if isinstance(content, bytes):
                written.write(content)
            else:
                content(written)  # type: ignore[arg-type]
            opened.flush()
            parts, size = written.parts, opened.tell()
            work: list[Callable[[], Any]] = [
                partial(os.fsync, opened.fileno()),
                partial(digests.file_digest, path),
                partial(_has, path, parts),
            ]
            _, sha256, same = at_once(work, len(work)) if size > _SMALL else [each() for each in work]
        status = path.stat()
    if not same:
        raise BuildError.of(f"{path.name}: the file has other content than was written", "is the disk faulty?")
    digests.learn_written(path, status, sha256)
    return Artifact(directory, file, kind, status.st_size, sha256, tag)


class WrittenFile:
    """A binary file that notes the sizes and checksums of what is written to it.

    Attributes:
        parts: The size and the checksum (CRC-32) of each part of its content.
    """

    def __init__(self, file: BinaryIO) -> None:
        """Takes a new file that is open."""
        self.file, self.parts = file, [(0, 0)]

    def write(self, data: bytes) -> int:
        """Writes bytes."""
        size, checksum = self.parts[-1]
        self.parts[-1] = size + len(data), zlib.crc32(data, checksum)
        return self.file.write(data)

    def copy(self, source: BinaryIO, offset: int, size: int, checksum: int) -> None:
        """Copies a part of another open file, which must have this checksum."""
        copy_part(source, self.file, offset, size)
        self.parts += [(size, checksum), (0, 0)]


def _has(path: Path, parts: Sequence[tuple[int, int]]) -> bool:
    """Whether a file consists of parts with these sizes and checksums."""
    with regular_files.opened(path) as file:
        for size, expected in parts:
            left, checksum = size, 0
            while left and (block := file.read(min(_BLOCK, left))):
                left, checksum = left - len(block), zlib.crc32(block, checksum)
            if left or checksum != expected:
                return False
        return not file.read(1)
