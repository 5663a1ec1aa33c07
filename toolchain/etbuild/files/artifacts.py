"""Writes artifacts: each file is hashed and read back, and all files of a build are published together."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from etbuild.errors import BuildError
from etbuild.files import digests, regular_files
from etbuild.files.directories import Folder
from etbuild.files.scratch import HIDDEN, Scratch, write_error
from etbuild.foreign_errors import wrap_system_errors

if TYPE_CHECKING:
    from etbuild.results import ArtifactFacts

_BLOCK = 1 << 20
_INDEX_BYTES = 1 << 26  # the largest index that is read; a thousand times the size of a large one
_ETRECORD = re.compile(r"[\w-]+\.etrecord", re.ASCII)


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


@contextlib.contextmanager
def staging(directory: Path) -> Iterator[Path]:
    """A new directory inside the target directory, from which `publish` moves files. It is removed at the end.

    If the build is killed, the next build removes it.

    Raises:
        BuildError: The directory cannot be made, the file system has no locks for `publish`, or the code inside meets a
            full disk or the like.
    """
    with _beside(directory) as staged:
        with contextlib.suppress(BlockingIOError), _turn(directory, fcntl.LOCK_SH | fcntl.LOCK_NB):
            pass
        yield staged


@contextlib.contextmanager
def _beside(directory: Path) -> Iterator[Path]:
    """A new directory inside the target directory. It is removed at the end."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        staged = Scratch(directory, HIDDEN)
    except OSError as error:
        raise write_error(directory, error) from error
    with staged, wrap_system_errors():
        yield staged.path


@contextlib.contextmanager
def whole_directory(directory: Path) -> Iterator[Path]:
    """A directory that appears complete at the end, or stays as it is. Its previous content is removed.

    Raises:
        BuildError: The directory cannot be made, or a file or a link has its name.
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
    """Moves a directory, if it exists, to where it is removed. Under its name it is always complete or absent."""
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
    """Moves the artifacts of one build to their place, each by one atomic rename. Two builds take turns.

    The index is moved last. Before anything is moved, the index of an earlier build is removed, with the files that it
    lists and this build does not make. So an index never describes files of another build, and a renamed tag leaves no
    old file behind. Nor does a removed method leave its ETRecord if the build makes ETRecords. Links in the directory
    are not followed.

    Raises:
        BuildError: A file cannot be moved there.
    """
    with _turn(directory, fcntl.LOCK_EX) as place:
        made = {artifact.file for artifact in artifacts}
        _withdraw(place, artifacts[-1].file, made)
        _remove(place, _other_etrecords(place, made))
        for artifact in artifacts:
            _move(artifact, place)
    return [replace_fields(artifact, directory=directory) for artifact in artifacts]


def _other_etrecords(place: Folder, made: set[str]) -> list[str]:
    """The ETRecords that stand beside those of a build and that it does not make."""
    others = []
    for parent in {name.partition("/")[0] for name in made if name.endswith(".etrecord") and "/" in name}:
        with contextlib.suppress(OSError), place.enter(parent) as folder:  # it may not be there yet
            others += [f"{parent}/{name}" for name in folder.names(_ETRECORD)]
    return sorted({*others} - made)


def publish_together(builds: list[list[Artifact]], directory: Path, aside: Path, removed: Sequence[str] = ()) -> None:
    """Publishes several builds as one: all of their files appear, or the directory is again what it was.

    If this process is killed meanwhile, no index of these builds is left, so no index describes files of another build.

    Args:
        builds: The artifacts of each build. The index is the last of each.
        directory: Where they go.
        aside: A new directory on the same file system, which keeps the earlier files meanwhile.
        removed: Files of the directory that are removed.

    Raises:
        BuildError: A file cannot be moved.
    """
    indexes = [artifacts[-1] for artifacts in builds]
    others = [artifact for artifacts in builds for artifact in artifacts[:-1]]
    names = {artifact.file for artifact in [*indexes, *others]}
    with _turn(directory, fcntl.LOCK_EX) as place, Folder.at(aside) as kept:
        earlier = {name for index in indexes for name in _listed(place, index.file)}
        safe: list[str] = []  # what can be put back
        try:
            for name in sorted(names.union(removed)):
                _keep(place, name, kept)
                safe.append(name)
            for name in sorted(earlier.difference(safe)):
                with contextlib.suppress(BuildError):  # whatever has this name, no build has made it
                    _keep(place, name, kept)
                    safe.append(name)
            gone = [name for name in safe if name not in names]
            _remove(place, [*(index.file for index in indexes), *gone])
            for artifact in [*others, *indexes]:
                _move(artifact, place)
        except BaseException:  # an interrupt as well
            _put_back(kept, safe, place)
            raise
        _remove_folders(place, gone)


def _keep(place: Folder, name: str, kept: Folder) -> None:
    """Keeps a file under the same name in another directory, if there is one. Raises BuildError if a directory has the
    name."""
    try:
        with place.holder(name) as (folder, file):
            if folder.is_folder(file):
                raise IsADirectoryError(errno.EISDIR, "a directory has this name")
            kept.make_parents(name)
            with kept.holder(name) as (target, _):
                folder.link(file, target, file)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise write_error(place.path / name, error) from error


def _put_back(kept: Folder, names: list[str], place: Folder) -> None:
    """Restores the files that were kept, and removes those that were not there."""
    for name in names:
        with contextlib.suppress(OSError), place.holder(name) as (folder, file):
            try:
                with kept.holder(name) as (source, _):
                    source.move(file, folder, file)
            except FileNotFoundError:
                folder.remove(file)
    _remove_folders(place, names)


def _remove(place: Folder, names: Iterable[str]) -> None:
    """Removes files. Those that are not there are no error."""
    for name in names:
        try:
            with place.holder(name) as (folder, file):
                folder.remove(file)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise write_error(place.path / name, error) from error


def _remove_folders(place: Folder, names: Iterable[str]) -> None:
    """Removes the directories that have held these files and are empty now."""
    for parent in {name.partition("/")[0] for name in names if "/" in name}:
        with contextlib.suppress(OSError):  # another shard is in it
            place.remove_empty(parent)


@contextlib.contextmanager
def _turn(directory: Path, kind: int) -> Iterator[Folder]:
    """Opens a directory, and locks it against other processes that publish in it."""
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
            raise BuildError.of(message, "write to a directory of a local file system") from error
        yield place


def _withdraw(place: Folder, index: str, kept: set[str]) -> None:
    """Removes an index and the files of its program that it lists and that are not in `kept`."""
    gone = _listed(place, index) - kept
    try:
        place.remove(index)
    except OSError as error:
        raise write_error(place.path / index, error) from error
    for name in sorted(gone):
        with contextlib.suppress(OSError), place.holder(name) as (folder, file):
            folder.remove(file)
    _remove_folders(place, gone)


def _listed(place: Folder, index: str) -> set[str]:
    """The files that the index of a program lists and whose names are names of artifacts.

    The check of the names protects manifests and sources in the same directory. If the index is missing or is not one
    of ours, the result is empty.
    """
    program = index.rsplit(".", 2)[0]
    try:
        with place.open(index) as file:
            artifacts = json.loads(file.read(_INDEX_BYTES))["artifacts"]
        names = [artifact["file"] for artifact in artifacts]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return set()
    return {name for name in names if isinstance(name, str) and is_artifact_name(name, program)}


def is_artifact_name(name: str, program: str) -> bool:
    """Whether a name is one that the artifacts of a program may have, beside the index. It contains no `..`."""
    artifact = r"\.(pte|[\w-]+\.ptd|[\w-]+/[\w-]+\.ptd|tokenizer/\w[\w.-]*|(report|lowering)\.json)"
    return re.fullmatch(re.escape(program) + artifact, name, re.ASCII) is not None


def _move(artifact: Artifact, place: Folder) -> None:
    try:
        place.make_parents(artifact.file)
        with (
            Folder.at(artifact.directory) as destination,
            destination.holder(artifact.file) as (source, name),
            place.holder(artifact.file) as (target, _),
        ):
            source.move(name, target, name)
    except OSError as error:
        raise write_error(place.path / artifact.file, error) from error


def write(
    directory: Path, file: str, kind: str, content: bytes | Callable[[BinaryIO], object], tag: str | None = None
) -> Artifact:
    """Writes a file and reads it back.

    ExecuTorch's own `save` logs a failed write and goes on, so files are opened here.

    Args:
        directory: Where the build's artifacts are.
        file: The file's name there. Directories in it are made.
        kind: The artifact's kind.
        content: The content, or what writes it to an open binary file.
        tag: The artifact's tag.

    Raises:
        BuildError: The file cannot be written, or reading it back gives other content.
    """
    path = directory / file
    try:
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
    except OSError as error:
        raise write_error(path, error) from error
    if not same:
        raise BuildError.of(f"{path.name}: the file has other content than was written", "is the disk faulty?")
    digests.learn_written(path, status, sha256)
    return Artifact(directory, file, kind, status.st_size, sha256, tag)


class _SummedFile:
    """A binary file with the sha256 of what is written to it, and a checksum, which is faster to compute again."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.sha256 = hashlib.sha256()
        self.checksum = 0

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        self.checksum = zlib.crc32(data, self.checksum)
        return self.file.write(data)


def _checksum(path: Path) -> int:
    """The checksum of what a file holds."""
    checksum = 0
    with regular_files.opened(path) as file:
        while block := file.read(_BLOCK):
            checksum = zlib.crc32(block, checksum)
    return checksum


def replace(path: Path, content: bytes) -> None:
    """Writes a small file under another name, then renames it, so that it is never incomplete.

    Raises:
        BuildError: The file cannot be written.
    """
    replace_by(path, lambda file: file.write(content))


def replace_by(path: Path, write_to: Callable[[BinaryIO], object]) -> None:
    """Does the same for a file of any size, which `write_to` writes to an open file.

    Raises:
        BuildError: The file cannot be written.
    """
    with _beside(path.parent) as directory:
        written = write(directory, path.name, "file", write_to)
        try:
            written.path.replace(path)
        except OSError as error:
            raise write_error(path, error) from error
