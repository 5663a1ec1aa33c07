"""Pushes packages to a registry, and pulls them. Only missing files are transferred, several at the same time."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from etbuild.errors import InputError
from etbuild.files.digests import file_digest
from etbuild.files.scratch import salvage, temporary, write_error
from etbuild.publishing import artifacts
from etkit.registry.oci import assembly, dates, layout, package
from etkit.registry.oci.attempts import OnBytes, Work
from etkit.registry.oci.descriptors import Descriptor
from etkit.registry.oci.package import Package, Program
from etkit.registry.oci.provenance import MEDIA_TYPE as PROVENANCE_TYPE
from etkit.registry.oci.registry import NoSuchPackage, Repository

if TYPE_CHECKING:
    from etkit.local.cache.store import Cache

_Result = TypeVar("_Result")


@dataclass
class Moved:
    """What a push or a pull did: the numbers of files and bytes. `sent` files went over the network."""

    sent: int = 0
    sent_bytes: int = 0
    mounted: int = 0
    present: int = 0

    def note(self, how: str, blob: Descriptor) -> None:
        """Counts a blob."""
        setattr(self, how, getattr(self, how) + 1)
        if how == "sent":
            self.sent_bytes += blob.size


def push(
    directory: Path,
    repository: Repository,
    tags: Sequence[str],
    mount_from: Sequence[str],
    work: Work,
    sign: Callable[[str], object] | None = None,
    forward_tags: Sequence[str] = (),
) -> tuple[Package, Moved, list[str]]:
    """Pushes the package of a layout.

    Sends files first, then the manifests of the programs, then the image index, then its tags. So a tag never names a
    package that is incomplete, or not yet signed.

    Args:
        directory: The layout.
        repository: Where the package goes.
        tags: Its tags. Without any, it can be pulled by its digest.
        mount_from: Other repositories of the registry that may have files of the package.
        work: How to transfer.
        sign: Signs the package that a reference names.
        forward_tags: Tags that move only to a package with a later date.

    Returns:
        The package, what was sent, and those `forward_tags` that name a later package and so did not move.

    Raises:
        InputError: The directory is not a layout, the package has no date for `forward_tags`, or the registry refuses.
        BuildError: A blob is damaged, or the registry does not take it.
    """
    content = layout.read(directory)
    date = dates.moment(dates.created(content.root, content.documents[content.root.sha256]))
    if forward_tags and date is None:
        message = f"{directory}: the package has no date, so it cannot be compared with that of another package"
        hint = f'etbuild package ... --annotation "{dates.CREATED}=$(git log -1 --format=%cI)"'
        raise InputError.of(message, hint)
    moved = Moved()
    blobs = list(content.blobs.values())
    work.expected(sum(blob.size for blob in blobs))

    def send(blob: Descriptor) -> tuple[str, Descriptor]:
        assembly.check(layout.blob_path(directory, blob), blob, layout.HINT)
        if repository.has(blob):
            how = "present"
        elif any(repository.mount(blob, other) for other in mount_from):
            how = "mounted"
        else:
            repository.upload(blob, layout.blob_path(directory, blob), work.on_bytes)
            return "sent", blob
        work.on_bytes(blob.size)
        return how, blob

    for how, blob in in_parallel(repository, work.jobs, [partial(send, blob) for blob in blobs]):
        moved.note(how, blob)
    for program in content.programs:
        repository.put_document(program.manifest.digest, program.manifest, content.documents[program.manifest.sha256])
    for statement in content.statements:
        data = content.documents[statement.manifest.sha256]
        repository.put_referrer(statement.subject, statement.manifest, data, PROVENANCE_TYPE)
    names, stay = list(tags), list[str]()
    if sign is not None or not tags:  # there may be only `forward_tags`, which may stay
        names.insert(0, content.root.digest)
    for name in names:
        repository.put_document(name, content.root, content.documents[content.root.sha256])
        if sign is not None and name == content.root.digest:
            sign(repository.reference.at(name))
    for name in forward_tags:
        if date is not None and _is_later(repository, name, date):
            stay.append(name)
        else:
            repository.put_document(name, content.root, content.documents[content.root.sha256])
    return content, moved, stay


def _is_later(repository: Repository, tag: str, date: datetime) -> bool:
    """Whether a tag names a package with a later date. A package without a date is not later."""
    try:
        found = dates.moment(dates.created(*repository.document(tag)))
    except NoSuchPackage:
        return False
    return found is not None and found > date


def read(repository: Repository, wanted: str, accept: Callable[[str], object] | None = None) -> Package:
    """Reads the package of a tag or digest. The tag is looked up once: everything else goes by digest.

    Args:
        repository: Where it is.
        wanted: The tag or digest.
        accept: Is called with the reference by digest, before the package is read. It may refuse it.

    Raises:
        InputError: There is none, or it is not a package of programs.
        BuildError: The registry sends something other than what was asked for.
    """
    root, data = repository.document(wanted)
    if accept is not None:
        accept(repository.reference.at(root.digest))

    def load(blob: Descriptor, limit: int) -> bytes:
        return data if blob.sha256 == root.sha256 else repository.load(blob, limit)

    return package.read(root, load, repository.reference.at(wanted))


def with_referrers(repository: Repository, content: Package) -> Package:
    """Adds to a package the registry's statements about programs for which it holds none.

    Statements of other tools are left out, because `provenance` has not made them.

    Raises:
        BuildError: The registry does not answer, or a statement does not follow from the index of its program.
    """
    stated = {statement.subject.sha256 for statement in content.statements}
    found = [
        manifest
        for program in content.programs
        if program.manifest.sha256 not in stated
        for manifest in repository.referrers(program.manifest, PROVENANCE_TYPE)
    ]
    return package.read_statements(content, found, repository.load, str(repository))


def pull(
    repository: Repository,
    content: Package,
    programs: Sequence[Program],
    directory: Path,
    cache: Cache | None,
    work: Work,
) -> Moved:
    """Pulls programs of a package into a directory. Files appear under their names when all of them are complete.

    A file that the directory or the local cache has is not fetched. After a failed pull, the local cache gets the files
    that have arrived. After a killed pull, the next pull into the directory does this.

    Args:
        repository: Where the package is.
        content: The package.
        programs: The programs.
        directory: Where the files go. It is made if it is missing.
        cache: The local cache, if there is one.
        work: How to transfer.

    Raises:
        BuildError: The registry does not send a file as it should be, or a file cannot be written.
    """
    moved = Moved()
    names: dict[str, list[str]] = {}
    for program in programs:
        for name, blob in program.files.items():
            names.setdefault(blob.sha256, []).append(name)
    needed = package.blobs(programs)
    if cache is not None:
        salvage(directory, partial(_keep, cache, {blob.sha256 for blob in needed}))
    with artifacts.staging(directory) as staged:
        store = staged / _STORE
        store.mkdir()
        work.expected(sum(blob.size for blob in needed))

        arrived: list[str] = []

        def get(blob: Descriptor) -> tuple[str, Descriptor]:
            found = any(assembly.take_over(directory, name, blob, store) for name in names[blob.sha256])
            if found or (cache is not None and cache.fetch_blob(blob.sha256, blob.size, store, blob.sha256)):
                work.on_bytes(blob.size)
                return "present", blob
            if blob.sha256 in content.documents:  # `read` has already fetched it
                assembly.write(store / blob.sha256, content.documents[blob.sha256])
                work.on_bytes(blob.size)
            else:
                fetch(repository, blob, store / blob.sha256, work.on_bytes)
                arrived.append(blob.sha256)
            return "sent", blob

        try:
            for how, blob in in_parallel(repository, work.jobs, [partial(get, blob) for blob in needed]):
                moved.note(how, blob)
        except BaseException:  # an interrupt as well
            if cache is not None:
                cache.keep_blobs(store, arrived)
            raise
        assembly.publish({program.name: program.files for program in programs}, store, staged, directory)
    return moved


_STORE = "blobs"  # in the staging directory of a pull: the directory of contents that have arrived


def _keep(cache: Cache, needed: Collection[str], left: Path) -> None:
    """Puts the complete files in the directory of a killed pull into the local cache."""
    # A file with another name is a file of the user's directory, which the cache must not share.
    found = [path for path in (left / _STORE).iterdir() if path.name in needed and path.lstat().st_nlink == 1]
    cache.keep_blobs(left / _STORE, [path.name for path in found if file_digest(path) == path.name])


def attach(repository: Repository, subject: Descriptor, layer: Descriptor, data: bytes) -> Descriptor:
    """Pushes a document as a referrer of a manifest. Returns the descriptor of its own manifest.

    Raises:
        EtbuildError: The registry does not take it.
    """
    described, documents = package.referrer(subject, layer, {})
    documents[layer.sha256] = data
    with temporary("attached") as scratch:
        for sha256, content in documents.items():
            blob = Descriptor(layer.media_type, sha256, len(content))
            if sha256 != described.sha256 and not repository.has(blob):
                assembly.write(scratch.path / sha256, content)
                repository.upload(blob, scratch.path / sha256, lambda _: None)
    repository.put_referrer(subject, described, documents[described.sha256], layer.media_type)
    return described


def fetch(repository: Repository, blob: Descriptor, path: Path, on_bytes: OnBytes) -> None:
    """Writes a blob to a new file.

    Raises:
        BuildError: The registry does not send the right content, or the file cannot be written.
    """
    try:
        with path.open("x+b") as file:
            repository.fetch(blob, file, on_bytes)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise write_error(path, error) from error


def verify(repository: Repository, programs: Iterable[Program], work: Work) -> int:
    """Fetches every file of programs, and compares it with its digest. Keeps no file.

    Returns:
        The number of files.

    Raises:
        BuildError: A file is missing or damaged.
    """
    needed = package.blobs(programs)
    work.expected(sum(blob.size for blob in needed))

    def check(blob: Descriptor) -> None:
        repository.fetch(blob, _Nowhere(), work.on_bytes)

    in_parallel(repository, work.jobs, [partial(check, blob) for blob in needed])
    return len(needed)


class _Nowhere(io.BytesIO):
    """A file that keeps nothing. It replaces the null device, which cannot be truncated."""

    def write(self, data: Any) -> int:
        return len(data)


def in_parallel(repository: Repository, jobs: int, tasks: Sequence[Callable[[], _Result]]) -> list[_Result]:
    """The results of tasks, some of which run at the same time. The first failure or an interrupt ends the others."""
    executor = ThreadPoolExecutor(max_workers=jobs)
    try:
        futures = [executor.submit(task) for task in tasks]
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        for each in done:
            each.result()
        return [each.result() for each in futures]
    except BaseException:  # an interrupt as well
        repository.stop.set()
        raise
    finally:
        executor.shutdown(cancel_futures=True)
