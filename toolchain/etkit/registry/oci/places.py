"""Places that hold programs: a directory of a build, a layout, or a repository of a registry."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from etbuild.files.digests import file_digest
from etkit.building import lockfile
from etkit.registry.oci import assembly, layout, package, reference
from etkit.registry.oci.descriptors import Descriptor
from etkit.registry.oci.package import Package, PackageFiles, Program, Statement

if TYPE_CHECKING:
    from etkit.registry.oci.attempts import Work
    from etkit.registry.oci.reference import Access
    from etkit.registry.oci.registry import Repository


class Place(ABC):
    """A place with programs, and the contents of their files.

    Attributes:
        name: The name of the place, as the user has written it.
        content: The programs.
        missing: Names of files of a package that this place lacks: a build has no lockfile, or one with other bytes.
        holds_statements: Whether a place of this kind can hold statements about who has built the programs.
    """

    holds_statements = True

    def __init__(self, name: str, content: Package, missing: Collection[str] = ()) -> None:
        self.name = name
        self.content = content
        self.missing = missing

    def statements(self) -> Sequence[Statement]:
        """The statements about the programs."""
        return self.content.statements

    @abstractmethod
    def check(self, programs: Sequence[Program], work: Work) -> int:
        """Compares every file of programs with its digest. Returns the number of files. Errors: as `load`; a
        `CheckError` if a lockfile beside a build is that of another program."""

    @abstractmethod
    def load(self, blob: Descriptor, limit: int) -> bytes:
        """The content of a program's file that is not a document of the package. It has been compared with its digest.

        Raises:
            EtbuildError: It has more bytes than the limit, cannot be read, or has other content.
        """

    @abstractmethod
    def save(self, blob: Descriptor, path: Path) -> None:
        """Writes such a file to a new file. Errors: as `load`."""


class _Files(Place):
    """Files on this machine, by their digests."""

    hint = layout.HINT

    def __init__(
        self, name: str, content: Package, paths: Mapping[str, Sequence[Path]], missing: Collection[str] = ()
    ) -> None:
        super().__init__(name, content, missing)
        self._paths = paths

    def check(self, programs: Sequence[Program], work: Work) -> int:
        checks = [(path, blob) for blob in package.blobs(programs) for path in self._paths.get(blob.sha256, ())]
        for path, blob in checks:
            assembly.check(path, blob, self.hint)
        return len(checks)

    def load(self, blob: Descriptor, limit: int) -> bytes:
        return assembly.read(self._paths[blob.sha256][0], blob, limit, self.hint)

    def save(self, blob: Descriptor, path: Path) -> None:
        assembly.copy(self._paths[blob.sha256][0], blob, path, self.hint)


class _Builds(_Files):
    """Finished builds. They have no statements about who has built them."""

    hint = package.HINT
    holds_statements = False

    def __init__(self, name: str, directory: Path, made: PackageFiles, indexes: Sequence[Path]) -> None:
        content = replace(made.package, statements=[])
        paths = {**made.sources, **{file_digest(index): [index] for index in indexes}}
        self._locks, missing = dict[str, Path](), list[str]()
        for program in content.programs:
            lock = directory / f"{program.name}.lock.json"
            if os.path.lexists(lock):
                self._locks[program.name] = lock
            if not lock.is_file() or file_digest(lock) != program.files[lock.name].sha256:
                missing.append(lock.name)
        super().__init__(name, content, paths, missing)

    def check(self, programs: Sequence[Program], work: Work) -> int:
        count = super().check(programs, work)
        locked = [program for program in programs if program.name in self._locks]
        for program in locked:
            lock = self._locks[program.name]
            hint = f"etbuild lock {lock.with_name(f'{program.name}.index.json')} {lock} --update"
            lockfile.check(lock, lockfile.lock(self.content.index(program)), hint)
        return count + len(locked)


class _Remote(Place):
    """A package of a registry."""

    def __init__(self, name: str, content: Package, repository: Repository) -> None:
        super().__init__(name, content)
        self._repository = repository

    def statements(self) -> Sequence[Statement]:
        from etkit.registry.oci import transfer

        return transfer.with_referrers(self._repository, self.content).statements

    def check(self, programs: Sequence[Program], work: Work) -> int:
        from etkit.registry.oci import transfer

        return transfer.verify(self._repository, programs, work)

    def load(self, blob: Descriptor, limit: int) -> bytes:
        return self._repository.load(blob, limit)

    def save(self, blob: Descriptor, path: Path) -> None:
        from etkit.registry.oci import transfer

        transfer.fetch(self._repository, blob, path, lambda _: None)


@contextmanager
def opened(name: str, access: Access, accept: Callable[[str], object] | None = None) -> Iterator[Place]:
    """Opens a place.

    Args:
        name: An index, a directory of builds, the directory of a layout, or a reference to a package in a registry.
        access: How to reach a registry.
        accept: Gets the reference by digest of a package in a registry before the package is read. It may refuse it.

    Raises:
        InputError: There is no such place, or it holds no programs. `registry.NoSuchPackage`: a registry has no such
            package.
        BuildError: It is damaged, or the registry does not answer.
    """
    path = Path(name)
    if path.is_dir() and layout.is_layout(path):
        content = layout.read(path)
        paths: dict[str, Sequence[Path]] = {
            blob.sha256: [layout.blob_path(path, blob)] for blob in content.blobs.values()
        }
        yield _Files(name, content, paths)
    elif path.exists():
        builds = sorted(path.glob("*.index.json")) if path.is_dir() else [path]
        made = package.make(builds or [path], {})
        yield _Builds(name, path if path.is_dir() else path.parent, made, builds or [path])
    else:
        source = reference.parse_missing(name)

        from etkit.registry.oci import transfer
        from etkit.registry.oci.registry import Repository

        with Repository(source, access) as repository:
            yield _Remote(name, transfer.read(repository, source.wanted, accept), repository)
