"""The finished builds below a directory, for cards and catalogs: indexes, reports, and results of tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from etbuild.errors import BuildError, InputError, steers
from etbuild.files import json_file, regular_files
from etbuild.files.digests import file_digest
from etbuild.results import ArtifactFacts, Index, Report
from etkit import find_index, kept_results, svg
from etkit.kept_results import Kept, Results

_MOST = 10_000  # builds of a directory
_MOST_OF_PICTURE = 64 << 20  # bytes
_SHOWN = 200  # characters of a name in a message
_BEST = "best"
"""The folder into which `etbuild watch --keep-best` copies a program of the folder above."""
_HINT = "an index lists this file: build again"


@dataclass(frozen=True)
class Build:
    """A finished build.

    Attributes:
        folder: The folder of its files below the directory, with `/`; empty for the directory itself.
        index: Its index.
        index_file: The name, size and digest of the file of its index.
        report: Its report; None if it is missing, was changed, or is of another release.
        results: What tests have measured.
        picture: The name of a file in the folder that shows what the program found in an image; None if there is none.
    """

    folder: str
    index: Index
    index_file: ArtifactFacts
    report: Report | None
    results: Sequence[Kept] = ()
    picture: str | None = None

    @property
    def name(self) -> str:
        """The name of the program."""
        return self.index["name"]

    @property
    def base(self) -> str:
        """The name of the manifest."""
        return self.name.partition(".")[0]

    @property
    def variant(self) -> str | None:
        """What comes after the name of the manifest: a variant, a checkpoint or both; None for none."""
        return self.name.partition(".")[2] or None

    @property
    def plan(self) -> dict[str, Any]:
        """The plan."""
        return self.index["inputs"]["plan"]

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the plan; empty if there is none."""
        found: dict[str, Any] = self.plan.get("metadata", {})
        return found

    @property
    def shipped(self) -> list[ArtifactFacts]:
        """The files that an application needs."""
        return [artifact for artifact in self.index["artifacts"] if artifact["kind"] != "report"]

    @property
    def size(self) -> int:
        """The bytes of the files that an application needs."""
        return sum(artifact["size"] for artifact in self.shipped)

    @property
    def methods(self) -> dict[str, Any]:
        """The methods of the report; empty without one."""
        return {} if self.report is None else {**self.report["methods"]}

    @property
    def applications(self) -> dict[str, Any]:
        """The kinds of applications that can load it, by the manifest's `for`, each with what it links."""
        return {} if self.report is None else {**self.report.get("applications", {})}

    @property
    def backends(self) -> list[str]:
        """The backends that it calls, as the runtime calls them."""
        return sorted({name for method in self.methods.values() for name in method["delegates"]})

    @property
    def delegated(self) -> float | None:
        """The part of its operators that backends take; None if the report does not list them."""
        counts = [method["operators"] for method in self.methods.values() if "operators" in method]
        inside = sum(sum(each.values()) for count in counts for each in count["delegated"].values())
        outside = sum(sum(count["fallback"].values()) for count in counts)
        return inside / (inside + outside) if inside + outside else None

    @property
    def memory(self) -> int | None:
        """The planned memory of the method that needs most, in bytes; None without a report."""
        return max((sum(method["memory"]) for method in self.methods.values()), default=None)

    @property
    def interface(self) -> dict[str, Any]:
        """What the inputs and outputs of its methods are, and mean if the manifest says it."""
        described: dict[str, Any] = {**self.index.get("interface", {})}
        of_program = {
            name: {"inputs": method["inputs"], "outputs": method["outputs"]} for name, method in self.methods.items()
        }
        merged: dict[str, Any] = {}
        for name in sorted({*described, *of_program}):
            merged[name] = {}
            for side in ("inputs", "outputs"):
                told = described.get(name, {}).get(side, [])
                values = of_program.get(name, {}).get(side, told)
                merged[name][side] = [
                    {**value, **(told[at] if at < len(told) else {})} for at, value in enumerate(values)
                ]
        return merged


def read(directory: Path) -> list[Build]:
    """Reads all builds below a directory, or the one of an index, sorted by the names of their programs.

    Raises:
        InputError: There are none, an index is damaged, or two programs have one name.
        BuildError: A file of a build is missing or has other content.
    """
    if directory.is_dir():
        found = (path for path in directory.rglob("*.index.json") if not _is_hidden(path, directory))
        paths = sorted(path for path in found if not _is_copy(path, directory))
        root = directory
    else:
        paths, root = [find_index.read_index(directory)[0]], directory.parent
    if not paths:
        raise InputError.of(f"{directory}: has no *.index.json", "name the directory that `etbuild build -o` wrote")
    if len(paths) > _MOST:
        raise InputError.of(f"{directory}: has more than {_MOST:,} indexes", "name a directory with fewer builds")
    builds = sorted((_read(path, root) for path in paths), key=lambda build: build.name)
    for one, other in pairwise(builds):
        if one.name == other.name:
            places = " and ".join(repr(each.folder or ".") for each in (one, other))
            raise InputError.of(f"two programs are called `{one.name}`", f"they are in {places}: leave one out")
    return builds


def _is_hidden(path: Path, directory: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(directory).parts)


def _is_copy(path: Path, directory: Path) -> bool:
    """Whether an index below a directory is that of the best program, whose original is one folder higher."""
    folder = path.parent
    return folder != directory and folder.name == _BEST and (folder.parent / path.name).exists()


def _read(path: Path, root: Path) -> Build:
    folder = path.parent.relative_to(root).as_posix().removeprefix(".")
    path, index = find_index.read_index(path)
    for name in (folder, path.name, *(artifact["file"] for artifact in index["artifacts"])):
        if steers(name):
            message = f"{root}: the name {name[:_SHOWN]!r} has characters that are no text"
            raise InputError.of(message, "give it another name")
    for artifact in index["artifacts"]:
        _check(path, artifact)
    data = regular_files.read(path, json_file.MAX_BYTES)
    own: ArtifactFacts = {"file": path.name, "kind": "index", "size": len(data), "sha256": file_digest(path)}
    report = None
    with suppress(InputError):
        report = find_index.listed_report(path, index)
    return Build(folder, index, own, report, _kept(path, index), _picture(path, index))


def _check(path: Path, artifact: ArtifactFacts) -> None:
    """Compares a file of a build with what its index says."""
    file = regular_files.beside(path, artifact["file"])
    if file is None:
        raise BuildError.of(f"{path}: the file {artifact['file']} is missing beside it", _HINT)
    try:
        is_same = file.stat().st_size == artifact["size"] and file_digest(file) == artifact["sha256"]
    except OSError as error:
        raise BuildError.of(f"{file}: {error.strerror}") from None
    if not is_same:
        raise BuildError.of(f"{path.parent / artifact['file']}: has other content than {path.name} says", _HINT)


def _kept(path: Path, index: Index) -> Sequence[Kept]:
    """What tests have measured of exactly this program. Other files, and those elsewhere, count as none."""
    program = next(artifact["sha256"] for artifact in index["artifacts"] if artifact["kind"] == "program")
    if regular_files.beside(path, f"{index['name']}{kept_results.SUFFIX}") is None:
        return ()
    found = kept_results.of_program(path.parent, index["name"], program)
    return () if found is None else found.results


def _picture(path: Path, index: Index) -> str | None:
    """The file that `etbuild run -o NAME.svg` wrote of exactly this program."""
    program = next(artifact["sha256"] for artifact in index["artifacts"] if artifact["kind"] == "program")
    file = regular_files.beside(path, f"{index['name']}.svg")
    with suppress(OSError):
        if file is not None and svg.shows(regular_files.read(file, _MOST_OF_PICTURE), program):
            return file.name
    return None


def left_out(directory: Path, builds: Iterable[Build]) -> list[Results]:
    """The results of variants that did not qualify and are not among the builds below a directory, sorted by name."""
    if not directory.is_dir():
        return []
    paths = (path for path in directory.rglob(f"*{kept_results.SUFFIX}") if not _is_hidden(path, directory))
    folders = sorted({path.parent for path in paths})
    built = {build.name for build in builds}
    found = [each for folder in folders for each in kept_results.left_out(folder) if each.name not in built]
    return sorted({each.name: each for each in found}.values(), key=lambda each: each.name)
