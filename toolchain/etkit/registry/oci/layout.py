"""OCI image layouts: a package as a directory, and the same directory as a tar file.

    oci-layout             the version of the layout
    index.json             the digest of the package
    blobs/sha256/1234...   every document and file, by digest

https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md describes the format.
"""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, BinaryIO

from etbuild.errors import EtbuildError, InputError
from etbuild.files import json_file, writing
from etbuild.publishing import artifacts
from etkit.registry.oci import assembly, package
from etkit.registry.oci.descriptors import INDEX, Descriptor, document
from etkit.registry.oci.package import Package, PackageFiles

HINT = "make the package again"
"""What to do if a file of a layout is damaged."""

_VERSION = "oci-layout"
_WANTED = json_file.Format("a layout of one package", "package#layout", "make it with `etbuild package`")


def is_layout(directory: Path) -> bool:
    """Whether a directory holds a layout."""
    return (directory / _VERSION).is_file()


def write(made: PackageFiles, directory: Path) -> None:
    """Writes a package as a directory, which appears complete. It replaces an earlier layout.

    Raises:
        InputError: The directory exists, and is neither empty nor a layout. A file of a program is missing.
        BuildError: A file of a program has other content than its index says, or a file cannot be written.
    """
    if not (assembly.is_free(directory) or (is_layout(directory) and _is_ours(directory))):
        message = f"{directory}: exists, and is not the layout of a package, or holds other files too"
        raise InputError.of(message, "name a new directory, or one that `etbuild package` has made")
    with artifacts.whole_directory(directory) as content:
        for name, _, file in _files(made):
            writing.write(content, name, "file", partial(shutil.copyfileobj, file))


def _is_ours(directory: Path) -> bool:
    """Whether a layout holds one package of programs, and no other file."""
    try:
        content = read(directory)
    except EtbuildError:
        return False
    blobs = content.documents.keys() | content.blobs.keys()
    return assembly.holds_only(directory, {_VERSION, "index.json", *map(_path_of, blobs)})


def write_tar(made: PackageFiles, path: Path) -> None:
    """Writes the same files as a tar file. Equal packages give equal bytes. Errors: as `write`."""

    def write_to(target: BinaryIO) -> None:
        with tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT) as tar:
            for name, size, file in _files(made):
                entry = tarfile.TarInfo(name)  # it has no user, the time 0 and the mode 0644
                entry.size = size
                tar.addfile(entry, file)

    artifacts.replace_by(path, write_to)


def _files(made: PackageFiles) -> Iterator[tuple[str, int, IO[bytes]]]:
    """The files of a layout, sorted: the name of each, its size, and the open file."""
    documents = {
        _VERSION: document({"imageLayoutVersion": "1.0.0"}),
        "index.json": document({"schemaVersion": 2, "mediaType": INDEX, "manifests": [made.package.root.json()]}),
        **{_path_of(sha256): data for sha256, data in made.package.documents.items()},
    }
    blobs = {_path_of(sha256): blob for sha256, blob in made.package.blobs.items()}
    for name in sorted({*documents, *blobs}):
        if name in documents:
            yield name, len(documents[name]), io.BytesIO(documents[name])
        else:
            with assembly.opened(made.sources[blobs[name].sha256][0], blobs[name], package.HINT) as file:
                yield name, blobs[name].size, file


def _path_of(sha256: str) -> str:
    return f"blobs/sha256/{sha256}"


def root(directory: Path) -> Descriptor:
    """The descriptor of the package in a layout.

    Raises:
        InputError: The directory is not a layout, or has more than one package.
    """
    if not is_layout(directory):
        raise InputError.of(f"{directory}: not the layout of a package", "make one with `etbuild package`")
    return Descriptor.parse(json_file.read(directory / "index.json", _WANTED)["manifests"][0])


def read(directory: Path) -> Package:
    """Reads the package of a layout. Checks its documents, and no other files.

    Raises:
        InputError: The directory is not a layout of a package.
        BuildError: A document is missing or damaged.
    """

    def load(blob: Descriptor, limit: int) -> bytes:
        return assembly.read(blob_path(directory, blob), blob, limit, HINT)

    return package.read(root(directory), load, str(directory))


def blob_path(directory: Path, blob: Descriptor) -> Path:
    """The path of a blob in a layout.

    Raises:
        BuildError: A link leads out of the layout.
    """
    return assembly.beside(directory / "index.json", _path_of(blob.sha256))
