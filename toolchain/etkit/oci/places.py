"""Places that hold programs: a directory of a build, a layout, or a repository of a registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from etbuild.errors import BuildError
from etbuild.files import regular_files
from etkit.oci import assembly, layout, package, reference
from etkit.oci.descriptors import Descriptor
from etkit.oci.package import Package

if TYPE_CHECKING:
    from etkit.oci.reference import Access
    from etkit.oci.registry import Repository


class Place(ABC):
    """Programs, and the contents of their files.

    Attributes:
        name: The place as the user has named it.
        content: The programs.
        missing: Names of files that a package of the programs has, and this place does not: a build has no lockfile.
    """

    def __init__(self, name: str, content: Package, missing: Collection[str] = ()) -> None:
        self.name = name
        self.content = content
        self.missing = missing

    def load(self, blob: Descriptor, limit: int) -> bytes:
        """The content of a file of a program, which has its digest.

        Args:
            blob: The file.
            limit: The largest size in bytes.

        Raises:
            EtbuildError: It is too large, cannot be read, or has other content.
        """
        data = self.content.documents.get(blob.sha256)
        return self._load(blob, limit) if data is None else data

    def save(self, blob: Descriptor, path: Path) -> None:
        """Writes a file of a program, which has its digest, to a new file. Errors: as `load`."""
        data = self.content.documents.get(blob.sha256)
        if data is None:
            self._save(blob, path)
        else:
            assembly.write(path, data)

    @abstractmethod
    def _load(self, blob: Descriptor, limit: int) -> bytes:
        """The same for a file that is no document of the package."""

    @abstractmethod
    def _save(self, blob: Descriptor, path: Path) -> None:
        """The same for a file that is no document of the package."""


class _Files(Place):
    """Files on this machine, by their digests."""

    def __init__(self, name: str, content: Package, paths: dict[str, Path], missing: Collection[str] = ()) -> None:
        super().__init__(name, content, missing)
        self._paths = paths

    def _load(self, blob: Descriptor, limit: int) -> bytes:
        path = self._paths[blob.sha256]
        try:
            data = regular_files.read(path, limit)
        except OSError as error:
            raise BuildError.of(f"{path}: {error.strerror}") from None
        if not blob.describes(data):
            raise package.changed_source(path)
        return data

    def _save(self, blob: Descriptor, path: Path) -> None:
        source = self._paths[blob.sha256]
        try:
            same = assembly.copy(source, blob, path)
        except OSError as error:
            raise BuildError.of(f"{source}: {error.strerror}") from None
        if not same:
            raise package.changed_source(source)


class _Remote(Place):
    """A package of a registry."""

    def __init__(self, name: str, content: Package, repository: Repository) -> None:
        super().__init__(name, content)
        self._repository = repository

    def _load(self, blob: Descriptor, limit: int) -> bytes:
        return self._repository.load(blob, limit)

    def _save(self, blob: Descriptor, path: Path) -> None:
        from etkit.oci import transfer

        transfer.fetch(self._repository, blob, path, lambda _: None)


@contextmanager
def opened_if_any(name: str, access: Access) -> Iterator[Place | None]:
    """Opens a package of a registry; None if the registry has no such package. Arguments and errors: as `opened`."""
    from etkit.oci.registry import NoSuchPackage

    with ExitStack() as stack:
        try:
            place = stack.enter_context(_in_registry(name, access))
        except NoSuchPackage:
            place = None
        yield place


@contextmanager
def opened(name: str, access: Access) -> Iterator[Place]:
    """Opens a place.

    Args:
        name: An index, a directory of builds, the directory of a layout, or a reference to a package in a registry.
        access: How to reach a registry.

    Raises:
        InputError: There is no such place, or it holds no programs.
        BuildError: It is damaged, or the registry does not answer.
    """
    path = Path(name)
    if path.is_dir() and layout.is_layout(path):
        content = layout.read(path)
        yield _Files(name, content, {blob.sha256: layout.blob_path(path, blob) for blob in content.blobs.values()})
    elif path.exists():
        builds = sorted(path.glob("*.index.json")) if path.is_dir() else [path]
        made = package.make(builds or [path], {})
        directory = path if path.is_dir() else path.parent
        locks = [f"{program.name}.lock.json" for program in made.package.programs]
        missing = [lock for lock in locks if not (directory / lock).exists()]
        yield _Files(name, made.package, {sha256: paths[0] for sha256, paths in made.sources.items()}, missing)
    else:
        reference.parse_missing(name)
        with _in_registry(name, access) as place:
            yield place


@contextmanager
def _in_registry(name: str, access: Access) -> Iterator[Place]:
    wanted = reference.parse(name)

    from etkit.oci import transfer
    from etkit.oci.registry import Repository

    with Repository(wanted, access) as repository:
        yield _Remote(name, transfer.read(repository, wanted.wanted), repository)
