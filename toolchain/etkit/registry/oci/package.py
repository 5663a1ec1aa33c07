"""Packages: an image index over the manifests of programs. A manifest lists the files of one build as blobs.

The config of a program's manifest is the index of its build. A package contains no time, host, user or path. So its
digest depends only on the content of the programs and on the annotations.

Data from a registry or a directory is not trusted. The names, sizes and digests of the files come from the index, and
the manifest must agree with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from etbuild.errors import BuildError, InputError, did_you_mean
from etbuild.files import json_file, regular_files
from etbuild.publishing.artifacts import is_artifact_name
from etbuild.results import ArtifactFacts, Index
from etkit import find_index
from etkit.building import lockfile
from etkit.registry.oci import assembly, provenance
from etkit.registry.oci.descriptors import INDEX, MANIFEST, Descriptor, document
from etplugins.applications import metadata

PROGRAM_TYPE = "application/vnd.rules-executorch.program.v1"
INDEX_TYPE = "application/vnd.rules-executorch.index.v2+json"
LOCK_TYPE = "application/vnd.rules-executorch.lock.v1+json"
LAYER_TYPES = {
    "program": "application/vnd.rules-executorch.pte",
    "named_data": "application/vnd.rules-executorch.ptd",
    "tokenizer": "application/vnd.rules-executorch.tokenizer",
    "report": "application/vnd.rules-executorch.report+json",
}
"""The media type of a layer, by the kind of its artifact in the index."""

DOCUMENT_BYTES = 4 << 20
"""The largest manifest, in bytes. Registries refuse larger ones."""

HINT = "an index lists this file: build again"
"""What to do if a file of a build has changed."""

_ALL_DOCUMENTS_BYTES = 256 << 20  # so many bytes of a package's documents are read at most: they stay in memory

_PROGRAM_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}(\.[A-Za-z0-9_-]{1,100})?", re.ASCII)


@dataclass(frozen=True)
class Program:
    """A program of a package.

    Attributes:
        name: The name of the program.
        manifest: Its manifest.
        index: The index of its build: the config of the manifest.
        layers: Its other files by name.
    """

    name: str
    manifest: Descriptor
    index: Descriptor
    layers: Mapping[str, Descriptor]

    @property
    def files(self) -> dict[str, Descriptor]:
        """All files by name. The index comes last."""
        return {**self.layers, f"{self.name}.index.json": self.index}


@dataclass(frozen=True)
class Statement:
    """The provenance of a program, as an artifact that refers to its manifest.

    Attributes:
        manifest: Its own manifest.
        subject: The manifest of the program.
        blobs: Its blobs: the statement, and an empty config.
        builder: The builder that it names.
    """

    manifest: Descriptor
    subject: Descriptor
    blobs: Sequence[Descriptor]
    builder: str


@dataclass(frozen=True)
class Package:
    """Programs that travel together.

    Attributes:
        root: The image index over the programs. For a single program out of a package: its manifest.
        programs: The programs.
        statements: The provenance of the programs.
        documents: The content of the image index, the manifests and the indexes, by sha256.
    """

    root: Descriptor
    programs: list[Program]
    statements: list[Statement]
    documents: Mapping[str, bytes]

    def index(self, program: Program) -> Index:
        """The index of a program."""
        index: Index = json_file.parse(self.documents[program.index.sha256])
        return index

    @property
    def blobs(self) -> dict[str, Descriptor]:
        """All blobs that are not manifests, by sha256, each once however many programs share it."""
        stated = [blob for statement in self.statements for blob in statement.blobs]
        return {blob.sha256: blob for blob in [*blobs(self.programs), *stated]}


@dataclass(frozen=True)
class PackageFiles:
    """A package made from builds, and by sha256 the files that hold its other blobs: one file of each program."""

    package: Package
    sources: Mapping[str, Sequence[Path]]


def make(
    builds: Iterable[Path], annotations: Mapping[str, str], builder: str = provenance.UNNAMED_BUILDER
) -> PackageFiles:
    """Makes a package from finished builds. Reads only their indexes.

    Args:
        builds: For each program its index, or a directory with one index.
        annotations: The annotations of the package.
        builder: A URI for who has built the programs.

    Raises:
        InputError: An index is missing or damaged, or two programs have one name.
        BuildError: A link in place of a file leads out of the directory of its index.
    """
    programs: list[Program] = []
    statements: list[Statement] = []
    documents: dict[str, bytes] = {}
    sources: dict[str, list[Path]] = {}
    for build in builds:
        path, index = find_index.read_index(build)
        program, made = _program(regular_files.read(path, json_file.MAX_BYTES), index, str(path))
        documents.update(made)
        programs.append(program)
        statement, stated = _statement(program, index, builder)
        documents.update(stated)
        statements.append(statement)
        for artifact in index["artifacts"]:
            sources.setdefault(artifact["sha256"], []).append(assembly.beside(path, artifact["file"]))
    _check_names(programs)
    programs.sort(key=lambda program: program.name)
    content: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": INDEX,
        "manifests": [
            *(program.manifest.json() for program in programs),
            *(statement.manifest.json() for statement in sorted(statements, key=lambda each: each.subject.sha256)),
        ],
    }
    if annotations:
        content["annotations"] = dict(sorted(annotations.items()))
    data = document(content)
    root = Descriptor.of(INDEX, data)
    return PackageFiles(Package(root, programs, statements, {**documents, root.sha256: data}), sources)


def _program(content: bytes, index: Index, where: str) -> tuple[Program, dict[str, bytes]]:
    """Makes the program of an index, which was read from `where`, and its documents by sha256."""
    _check_index(index, where)
    name = index["name"]
    annotated = {metadata.TITLE: name, **metadata.as_annotations(index["inputs"]["plan"].get("metadata", {}))}
    lock = lockfile.encoded(lockfile.lock(index))
    config = Descriptor.of(INDEX_TYPE, content)
    locked = Descriptor.of(LOCK_TYPE, lock, {metadata.TITLE: f"{name}.lock.json"})
    layers = {artifact["file"]: _layer(artifact) for artifact in index["artifacts"]}
    layers[f"{name}.lock.json"] = locked
    manifest = document(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": PROGRAM_TYPE,
            "config": config.json(),
            "layers": [layer.json() for layer in layers.values()],
            "annotations": dict(sorted(annotated.items())),
        }
    )
    described = Descriptor.of(MANIFEST, manifest, {metadata.TITLE: name})
    documents = {config.sha256: content, locked.sha256: lock, described.sha256: manifest}
    return Program(name, described, config, layers), documents


def _statement(program: Program, index: Index, builder: str) -> tuple[Statement, dict[str, bytes]]:
    """Makes the provenance of a program, and its documents by sha256."""
    content = document(provenance.statement(index, program.files, builder))
    title = {metadata.TITLE: f"{program.name}.provenance.json"}
    layer = Descriptor.of(provenance.MEDIA_TYPE, content, {**title, _PREDICATE_TYPE: provenance.PREDICATE})
    subject = replace(program.manifest, annotations={})
    described, documents = referrer(subject, layer, {_PREDICATE_TYPE: provenance.PREDICATE})
    statement = Statement(replace(described, annotations=title), subject, [_EMPTY_CONFIG, layer], builder)
    return statement, {**documents, layer.sha256: content}


def referrer(
    subject: Descriptor, layer: Descriptor, annotations: Mapping[str, str]
) -> tuple[Descriptor, dict[str, bytes]]:
    """The manifest of a document that refers to another manifest.

    Returns:
        Its descriptor, and the contents of the manifest and of its config, by sha256.
    """
    content: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": layer.media_type,
        "config": _EMPTY_CONFIG.json(),
        "layers": [layer.json()],
        "subject": replace(subject, annotations={}).json(),
    }
    manifest = document({**content, "annotations": dict(annotations)} if annotations else content)
    described = Descriptor.of(MANIFEST, manifest)
    return described, {_EMPTY_CONFIG.sha256: _EMPTY, described.sha256: manifest}


_PREDICATE_TYPE = "in-toto.io/predicate-type"
_EMPTY = b"{}"
_EMPTY_CONFIG = Descriptor.of("application/vnd.oci.empty.v1+json", _EMPTY)


def _layer(artifact: ArtifactFacts) -> Descriptor:
    media_type = LAYER_TYPES[artifact["kind"]]
    return Descriptor(media_type, artifact["sha256"], artifact["size"], {metadata.TITLE: artifact["file"]})


def read(root: Descriptor, load: Callable[[Descriptor, int], bytes], where: str) -> Package:
    """Reads a package, and checks that its documents agree with each other.

    Args:
        root: The image index over the programs, or the manifest of one program.
        load: Returns the content of a small blob after it has compared the digest. Its second argument is the largest
            size in bytes.
        where: What is read, for messages.

    Raises:
        InputError: It is not a package of programs.
        BuildError: Its documents do not agree.
    """
    reading = _Reading(load, where)
    contents = [(manifest, reading.manifest(manifest)) for manifest in reading.manifests(root)]
    programs = [reading.program(*each) for each in contents if each[1]["artifactType"] == PROGRAM_TYPE]
    statements = [reading.statement(*each) for each in contents if each[1]["artifactType"] == provenance.MEDIA_TYPE]
    if not programs:
        raise InputError.of(f"{where}: not a package: it holds no program")
    _check_names(programs)
    content = Package(root, programs, statements, reading.documents)
    _check_sizes(content, where)
    _check_statements(content, where)
    return content


def read_statements(
    content: Package, manifests: Iterable[Descriptor], load: Callable[[Descriptor, int], bytes], where: str
) -> Package:
    """Adds to a package statements about its programs that are stored outside of it. Arguments and errors: as
    `read`."""
    reading = _Reading(load, where)
    statements = [reading.statement(manifest, reading.manifest(manifest)) for manifest in manifests]
    more = replace(content, statements=statements, documents={**content.documents, **reading.documents})
    _check_statements(more, where)
    return replace(more, statements=[*content.statements, *statements])


class _Reading:
    """Reads the documents of a package. `documents` has their contents so far, by sha256."""

    def __init__(self, load: Callable[[Descriptor, int], bytes], where: str) -> None:
        self.documents: dict[str, bytes] = {}
        self._load, self._where = load, where
        self._left = _ALL_DOCUMENTS_BYTES

    def manifests(self, root: Descriptor) -> list[Descriptor]:
        """The manifests that a package lists."""
        if root.media_type == MANIFEST:
            return [root]
        _check_media_type(root, INDEX, self._where)
        listed = self._parsed(root, "a package", "package#package")["manifests"]
        found = {each["digest"]: Descriptor.parse(each) for each in listed}
        if len(found) < len(listed):
            raise InputError.of(f"{self._where}: the package lists a manifest twice")
        return list(found.values())

    def manifest(self, manifest: Descriptor) -> Any:
        """The content of a manifest."""
        _check_media_type(manifest, MANIFEST, self._where)
        return self._parsed(manifest, "a program of a package", "package#manifest")

    def program(self, manifest: Descriptor, content: Any) -> Program:
        """The program of a manifest. The manifest must be the one that follows from the index."""
        config = Descriptor.parse(content["config"])
        index: Index = self._parsed(config, "an index", "index", json_file.MAX_BYTES)
        program, made = _program(self.documents[config.sha256], index, self._where)
        for layer in map(Descriptor.parse, content["layers"]):
            name = layer.annotations.get(metadata.TITLE, "")
            same = program.layers.get(name)
            if same is None or (same.sha256, same.size) != (layer.sha256, layer.size):
                shown = name[:100] or layer.digest
                message = f"the manifest of `{program.name}` lists `{shown}`, which its index does not"
                raise BuildError.of(f"{self._where}: {message}")
        expected = json_file.parse(made[program.manifest.sha256])
        wrong = next((key for key in expected if content.get(key) != expected[key]), None)
        if wrong is None and manifest.annotations.get(metadata.TITLE, program.name) != program.name:
            wrong = metadata.TITLE
        if wrong is not None:
            raise BuildError.of(
                f"{self._where}: `{wrong}` of the manifest of `{program.name}` is not that of its index"
            )
        lock = program.layers[f"{program.name}.lock.json"].sha256
        self.documents[lock] = made[lock]  # equal to the registry's, so it need not be fetched
        return replace(program, manifest=manifest)

    def statement(self, manifest: Descriptor, content: Any) -> Statement:
        """The statement of a manifest."""
        listed = [Descriptor.parse(each) for each in (content["config"], *content["layers"])]
        _check_media_type(listed[1], provenance.MEDIA_TYPE, self._where)
        builder = provenance.builder_of(
            _json([self._loaded(blob, json_file.MAX_BYTES) for blob in listed][1], self._where)
        )
        return Statement(manifest, Descriptor.parse(content["subject"]), listed, builder or "")

    def _parsed(self, blob: Descriptor, what: str, schema: str, limit: int = DOCUMENT_BYTES) -> Any:
        return json_file.content(self._loaded(blob, limit), Path(self._where), json_file.Format(what, schema))

    def _loaded(self, blob: Descriptor, limit: int) -> bytes:
        """The content of a document. All documents together have a limit."""
        if blob.sha256 not in self.documents:
            data = self._load(blob, limit)
            self._left -= len(data)
            if self._left < 0:
                message = f"{self._where}: the documents of the package have more than {_ALL_DOCUMENTS_BYTES} bytes"
                raise BuildError.of(message, "put fewer programs into one package")
            self.documents[blob.sha256] = data
        return self.documents[blob.sha256]


def _check_sizes(content: Package, where: str) -> None:
    """Checks that each digest has only one size."""
    sizes: dict[str, int] = {}
    listed = [blob for program in content.programs for blob in (program.manifest, *program.files.values())]
    for blob in [*listed, *(blob for each in content.statements for blob in (each.manifest, *each.blobs))]:
        if sizes.setdefault(blob.sha256, blob.size) != blob.size:
            raise BuildError.of(f"{where}: the blob {blob.sha256[:16]} has two sizes")


def _check_statements(content: Package, where: str) -> None:
    """Checks that each statement is the one that follows from the index of its program."""
    by_manifest = {program.manifest.sha256: program for program in content.programs}
    for statement in content.statements:
        program = by_manifest.get(statement.subject.sha256)
        if program is None:
            raise BuildError.of(f"{where}: a statement is about {statement.subject.digest[:23]}, which is not there")
        wanted = provenance.statement(content.index(program), program.files, statement.builder)
        if _json(content.documents[statement.blobs[1].sha256], where) != wanted:
            raise BuildError.of(f"{where}: the statement about `{program.name}` does not follow from its index")


def _json(data: bytes, where: str) -> Any:
    try:
        return json_file.parse(data)
    except ValueError as error:
        raise BuildError.of(f"{where}: a statement cannot be read: {error}") from None


def chosen(content: Package, names: Sequence[str], where: str) -> list[Program]:
    """The programs of a package with these names; all of them if there are no names.

    Raises:
        InputError: There is no program of that name.
    """
    by_name = {program.name: program for program in content.programs}
    for name in names:
        if name not in by_name:
            raise InputError.of(f"{where}: there is no program `{name}`", did_you_mean(name, by_name))
    return [by_name[name] for name in names] or content.programs


def blobs(programs: Iterable[Program]) -> list[Descriptor]:
    """The files of programs, each once however many of them share it."""
    return list({blob.sha256: blob for program in programs for blob in program.files.values()}.values())


def _check_media_type(blob: Descriptor, wanted: str, where: str) -> None:
    if blob.media_type != wanted:
        raise InputError.of(f"{where}: not a package: it holds a {blob.media_type[:100]} where a {wanted} must be")


def check_files(path: Path, name: str, files: Mapping[str, Descriptor], where: str) -> None:
    """Checks that an index lists these files, besides itself.

    Args:
        path: The index.
        name: The name of its program.
        files: The files by name.
        where: What lists the files, for messages.

    Raises:
        InputError: The index is damaged.
        BuildError: It lists other files, or has names that no build makes.
    """
    try:
        data = regular_files.read(path, json_file.MAX_BYTES)
    except OSError as error:
        raise InputError.of(f"{path}: not an index: {error.strerror or error}") from error
    index: Index = json_file.content(data, path, json_file.Format("an index", "index"))
    program, _ = _program(data, index, where)
    expected = {file: (blob.sha256, blob.size) for file, blob in program.files.items()}
    if program.name != name or expected != {file: (blob.sha256, blob.size) for file, blob in files.items()}:
        raise BuildError.of(f"{where}: the files of `{name[:100]}` are not those of its index")


def _check_index(index: Index, where: str) -> None:
    """Checks names in an index before they become names of files: a build of this program makes each, and only once."""
    name = index["name"]
    if not _PROGRAM_NAME.fullmatch(name):
        raise BuildError.of(f"{where}: `{name[:100]}` cannot be the name of a program")
    names, folded = set[str](), set[str]()
    for artifact in index["artifacts"]:
        file = artifact["file"]
        if not is_artifact_name(file, name) or file in names:
            raise BuildError.of(f"{where}: `{file[:100]}` cannot be a file of the program `{name}`")
        if file.lower() in folded:  # some file systems do not tell upper from lower case
            message = f"{where}: the name `{file[:100]}` differs from another one only in upper and lower case"
            raise BuildError.of(message, "give the tags other names: some file systems have room for one of both only")
        names.add(file)
        folded.add(file.lower())


def check_name(file: str, program: str, where: str) -> None:
    """Checks that a file of a directory can be one of a program.

    Raises:
        BuildError: It cannot.
    """
    own = (f"{program}.index.json", f"{program}.lock.json")
    if not _PROGRAM_NAME.fullmatch(program) or not (file in own or is_artifact_name(file, program)):
        raise BuildError.of(f"{where}: `{file[:100]}` cannot be a file of the program `{program[:100]}`")


def _check_names(programs: list[Program]) -> None:
    """Checks that no two programs have one name: their files would have the same names."""
    seen: set[str] = set()
    for program in programs:
        folded = program.name.lower()  # some file systems do not tell upper from lower case
        if folded in seen:
            raise InputError.of(f"two programs of the package are called `{program.name}`", "give each its own name")
        seen.add(folded)
