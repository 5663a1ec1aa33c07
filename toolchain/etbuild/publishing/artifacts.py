"""Publishes artifacts: all files of a build appear together, or none of them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import BinaryIO

from etbuild.errors import BuildError
from etbuild.files import locks, regular_files
from etbuild.files.scratch import HIDDEN, Scratch, write_errors
from etbuild.files.writing import Artifact, write
from etbuild.foreign_errors import wrap_system_errors

_INDEX_BYTES = 1 << 26  # the limit for reading an index; a thousand times the size of a large one


@contextlib.contextmanager
def staging(directory: Path) -> Iterator[Path]:
    """A new directory inside the target directory, from which `publish` moves files. It is removed at the end.

    If the build is killed, the next build removes it.

    Raises:
        BuildError: The directory cannot be made, the file system has no locks for `publish`, or the code within this
            context meets a full disk or the like.
    """
    with scratch_in(directory) as staged:
        with contextlib.suppress(BlockingIOError), _publish_lock(directory, fcntl.LOCK_SH | fcntl.LOCK_NB):
            pass
        yield staged


@contextlib.contextmanager
def scratch_in(directory: Path) -> Iterator[Path]:
    """A new directory inside another one, which is made if it is missing. The new one is removed at the end."""
    with write_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        staged = Scratch(directory, HIDDEN)
    with staged, wrap_system_errors():
        yield staged.path


@contextlib.contextmanager
def turn(directory: Path) -> Iterator[None]:
    """Lets only one process at a time write to a directory, which is made if it is missing. Others wait.

    Raises:
        BuildError: The directory cannot be made or locked.
    """
    with write_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
    with _publish_lock(directory, fcntl.LOCK_EX):
        yield


@contextlib.contextmanager
def whole_directory(directory: Path) -> Iterator[Path]:
    """A directory that appears complete at the end, or does not change. Its previous content is removed.

    Raises:
        BuildError: The directory cannot be made, or a file or a link has its name.
    """
    with scratch_in(directory.parent) as staged:
        content = staged / "content"
        content.mkdir()
        yield content
        with write_errors(directory):
            _set_aside(directory, staged / "before")
            content.rename(directory)


def _set_aside(directory: Path, aside: Path) -> None:
    """Moves an existing directory to the place where it is removed. Under its name, it is always complete or absent."""
    try:
        _check_is_directory(directory)
        directory.rename(aside)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno != errno.EXDEV:  # overlayfs cannot move directories of a lower layer
            raise
        shutil.rmtree(directory)


def _check_is_directory(path: Path) -> None:
    """Raises OSError for a file, or for a link, which may lead anywhere; FileNotFoundError if there is nothing."""
    mode = path.lstat().st_mode
    if not stat.S_ISDIR(mode):
        raise NotADirectoryError(errno.ENOTDIR, f"`{path.name}` is a {'link' if stat.S_ISLNK(mode) else 'file'}")


def publish(artifacts: list[Artifact], directory: Path) -> list[Artifact]:
    """Moves the artifacts of one build to their place. The index is the last one.

    Raises:
        BuildError: A file cannot be moved there.
    """
    publish_together([artifacts], directory)
    return [replace_fields(artifact, directory=directory) for artifact in artifacts]


def publish_together(builds: list[list[Artifact]], directory: Path, removed: Sequence[str] = ()) -> None:
    """Moves the artifacts of several builds to their place, each by one atomic rename. Processes take turns.

    All files appear, or the directory is restored. If this process is killed meanwhile, no index of these builds
    remains: an index never describes files of another build. Files that an earlier index lists and these builds do not
    make are removed, and so are ETRecords of removed methods, if the builds make ETRecords. A link in place of a file
    is replaced.

    Args:
        builds: The artifacts of each build, with the index as the last one.
        directory: The target directory.
        removed: Files of the directory that are removed.

    Raises:
        BuildError: A file cannot be moved or removed.
    """
    indexes = [artifacts[-1] for artifacts in builds]
    others = [artifact for artifacts in builds for artifact in artifacts[:-1]]
    names = {artifact.file for artifact in [*indexes, *others]}
    with scratch_in(directory) as earlier, _publish_lock(directory, fcntl.LOCK_EX):
        outdated = {name for index in indexes for name in _listed(directory, index.file)} - names
        gone = [*removed, *_other_etrecords(directory, names), *outdated]
        changed = sorted({*names, *gone})
        for name in changed:
            _keep(directory, name, earlier)
        try:
            _remove(directory, [*(index.file for index in indexes), *gone])
            for artifact in [*others, *indexes]:
                _move(artifact, directory)
        except BaseException:  # also for an interrupt
            _put_back(earlier, changed, directory)
            raise
        _remove_empty(directory, gone)


def _keep(directory: Path, name: str, earlier: Path) -> None:
    """Keeps an existing file under the same name in another directory. Raises BuildError if that fails."""
    with write_errors(directory / name):
        source, target = _path_in(directory, name), earlier / name
        if os.path.lexists(source):
            target.parent.mkdir(exist_ok=True)
            try:
                os.link(source, target, follow_symlinks=False)
            except OSError:  # the file system has no links
                shutil.copy2(source, target, follow_symlinks=False)


def _put_back(earlier: Path, names: Sequence[str], directory: Path) -> None:
    """Restores the kept files, and removes files that did not exist before."""
    for name in names:
        with contextlib.suppress(OSError):
            if os.path.lexists(earlier / name):
                (directory / name).parent.mkdir(exist_ok=True)
                (earlier / name).replace(directory / name)
            else:
                (directory / name).unlink(missing_ok=True)
    _remove_empty(directory, names)


def _remove_empty(directory: Path, names: Iterable[str]) -> None:
    """Removes the directories of these files that are empty now."""
    for parent in {name.partition("/")[0] for name in names if "/" in name}:
        with contextlib.suppress(OSError):  # another shard is in it
            (directory / parent).rmdir()


def _other_etrecords(directory: Path, names: set[str]) -> list[str]:
    """The ETRecords that these builds do not make, in the directories of their ETRecords."""
    parents = {name.partition("/")[0] for name in names if name.endswith(".etrecord") and "/" in name}
    paths = [path for parent in parents for path in (directory / parent).glob("*.etrecord")]
    records = {f"{path.parent.name}/{path.name}" for path in paths if re.fullmatch(r"\w+", path.stem, re.ASCII)}
    return sorted(records - names)  # names of methods; files of users may have other names


def _path_in(directory: Path, name: str) -> Path:
    """The path of an artifact. Raises OSError if its directory, such as that of shards, is a link or a file."""
    path = directory / name
    if path.parent != directory:
        with contextlib.suppress(FileNotFoundError):
            _check_is_directory(path.parent)
    return path


def _remove(directory: Path, names: Iterable[str]) -> None:
    """Removes files. Missing files are no error."""
    for name in names:
        with write_errors(directory / name):
            _path_in(directory, name).unlink(missing_ok=True)


@contextlib.contextmanager
def _publish_lock(directory: Path, kind: int) -> Iterator[None]:
    """Locks a directory against other processes that publish in it."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(locks.locked(directory, kind, locks.DIRECTORY))
        except BlockingIOError:
            raise
        except OSError as error:
            message = f"{directory}: cannot be locked against other builds: {error.strerror}"
            raise BuildError.of(message, "write to a directory of a local file system") from error
        yield


def _listed(directory: Path, index: str) -> set[str]:
    """The files that the index of a program lists, if their names are names of artifacts.

    The check of the names protects manifests and sources in the same directory. Leaves out entries that no build can
    have made: no files, or in a linked directory. If the index is missing or is not one of ours, the result is empty.
    """
    program = index.rsplit(".", 2)[0]
    try:
        artifacts = json.loads(regular_files.read(directory / index, _INDEX_BYTES))["artifacts"]
        names = [artifact["file"] for artifact in artifacts]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return set()
    listed = {name for name in names if isinstance(name, str) and is_artifact_name(name, program)}
    # Functions of os.path accept names that are too long.
    linked = {name for name in listed if "/" in name and os.path.islink(directory / name.partition("/")[0])}  # noqa: PTH114
    return {name for name in listed - linked if os.path.isfile(directory / name)}  # noqa: PTH113


def is_artifact_name(name: str, program: str) -> bool:
    """Whether artifacts of a program, except the index, may have this name. Such a name contains no `..`."""
    artifact = r"\.(pte|[\w-]+\.ptd|[\w-]+/[\w-]+\.ptd|tokenizer/\w[\w.-]*|(report|lowering)\.json)"
    return re.fullmatch(re.escape(program) + artifact, name, re.ASCII) is not None


def _move(artifact: Artifact, directory: Path) -> None:
    with write_errors(directory / artifact.file):
        path = _path_in(directory, artifact.file)
        path.parent.mkdir(parents=True, exist_ok=True)
        artifact.path.replace(path)


def replace(path: Path, content: bytes) -> None:
    """Writes a small file under another name and renames it, so that it is never incomplete.

    Raises:
        BuildError: The file cannot be written.
    """
    replace_by(path, lambda file: file.write(content))


def replace_by(path: Path, write_to: Callable[[BinaryIO], object]) -> None:
    """Does the same for a file of any size. `write_to` writes it to an open file.

    Raises:
        BuildError: The file cannot be written.
    """
    with write_errors(path):
        if path.exists() and not path.is_file() and not path.is_dir():  # for root, a rename would replace `/dev/null`
            raise BuildError.of(f"{path}: is not a regular file, so it is not replaced", "name another file")
    with scratch_in(path.parent) as directory:
        written = write(directory, path.name, "file", write_to)
        with write_errors(path):
            written.path.replace(path)
