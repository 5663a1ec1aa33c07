"""The key of a program: a digest of its plan, its sources and data, and the toolchain."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from etbuild import backends
from etbuild.errors import BuildError, DocumentPath, InputError
from etbuild.files.digests import digest, file_digest
from etbuild.inputs.checkpoints import WEIGHTS, each_with_shards
from etbuild.inputs.sources import UsedSources
from etbuild.key import code
from etbuild.key.declared import Inputs
from etbuild.key.toolchain import toolchain

if TYPE_CHECKING:
    from etbuild.plan.plan import Plan
    from etbuild.results import Driver, FilesAndPackages, KeyInputs

KEY_SCHEMA = "executorch-key/v2"


@dataclass(frozen=True)
class KeyFiles:
    """The sources and the data in a key, as they were when the build began.

    Attributes:
        inputs: The declared inputs.
        used: The sources.
        names: The names of data in the plan, each with the place in the manifest that names it first.
        files: For each of these names, the names of its files. A download may add files later.
        digests: The digests of the files, and the imported packages.
    """

    inputs: Inputs
    used: UsedSources
    names: Mapping[str, DocumentPath]
    files: Mapping[str, tuple[str, ...]]
    digests: FilesAndPackages

    @classmethod
    def read(cls, inputs: Inputs, used: UsedSources, names: Mapping[str, DocumentPath]) -> KeyFiles:
        """Finds and digests the files. The arguments are described above.

        Raises:
            InputError: A file that the plan names is not declared, or a file cannot be read.
        """
        files = each_with_shards(names, inputs)
        data = read_data(names, files, inputs.data)
        digests: FilesAndPackages = {
            "sources": {name: hashlib.sha256(content).hexdigest() for name, content in sorted(used.contents.items())},
            "data": {name: _digest_of(name, inputs.find_data(name, path), path) for name, path in sorted(data.items())},
            "packages": sorted(used.packages),
        }
        return cls(inputs, used, names, files, digests)

    def data(self, names: Mapping[str, DocumentPath] | None = None) -> dict[str, DocumentPath]:
        """The data that a step reads whose plan has these names. None: all data."""
        return read_data(self.names if names is None else names, self.files, self.inputs.data)

    @property
    def checkpoints(self) -> list[str]:
        """The names of the files with weights."""
        return [file for name, place in self.names.items() if place[:2] == WEIGHTS for file in self.files[name]]

    def check_unchanged(self) -> None:
        """Checks that the data still has the content that was digested. Else the cache would keep a wrong result. Of
        sources, the content that was digested is in memory.

        Raises:
            BuildError: A file has changed, or a checkpoint has other files.
        """
        if changed := self._changed():
            raise BuildError.of(f"`{changed[0]}` changed during the build", "build again")
        for name, place in self.names.items():
            try:
                now = each_with_shards({name: place}, self.inputs)[name]
            except InputError:
                now = ()
            if now != self.files[name]:
                raise BuildError.of(f"the files of `{name}` changed during the build", "build again")

    def is_unchanged(self) -> bool:
        """Whether the data still has the content that was digested."""
        return not self._changed()

    def _changed(self) -> list[str]:
        data = {name: _digest_now(self.inputs.find(name)) for name in self.digests["data"]}
        return [name for name, now in data.items() if now != self.digests["data"][name]]


def read_data(
    names: Mapping[str, DocumentPath], files: Mapping[str, Collection[str]], declared: Iterable[str]
) -> dict[str, DocumentPath]:
    """The data that a step reads: the files that its plan names, and all declared data that no plan names, since a
    model may open it.

    Args:
        names: The names in the plan of the step, each with the place in the manifest that names it.
        files: For each name in the plan of the program, the names of its files.
        declared: The names of all declared data.

    Returns:
        The names of the files, each with a place in the manifest.
    """
    named = {file for of_name in files.values() for file in of_name}
    others: dict[str, DocumentPath] = {name: ("model",) for name in declared if name not in named}
    return {**others, **{file: place for name, place in names.items() for file in files[name]}}


def data_in_key(inputs: Inputs, names: Mapping[str, DocumentPath]) -> dict[str, DocumentPath]:
    """All data in the key of a plan that has these names, each with a place in the manifest."""
    return read_data(names, each_with_shards(names, inputs), inputs.data)


def describe_inputs(plan: Plan, inputs: Inputs, used: UsedSources) -> KeyInputs:
    """Describes a whole plan as `describe` does, with the files that it uses.

    Raises:
        InputError: A file is missing or cannot be read, or the version of a package is unknown.
    """
    return describe(plan, KeyFiles.read(inputs, used, plan.data_names).digests)


def describe(plan: Plan, read: FilesAndPackages) -> KeyInputs:
    """Everything that a build depends on: the plan, digests of the sources and data that it uses, and the toolchain.

    Args:
        plan: The plan.
        read: The `digests` of `KeyFiles`.

    Raises:
        InputError: A package that the sources import belongs to no distribution, so its version is unknown.
    """
    from etbuild.version import VERSION  # actions that need no whole key have no version

    steps = {step: code.digest_of(step, plan.plugins_of(step)) for step in sorted(code.OF_PROGRAMS)}
    driver: Driver = {"version": VERSION, "sha256": digest(steps), "steps": steps}
    return {
        "schema": KEY_SCHEMA,
        "plan": plan.to_json(),
        "sources": read["sources"],
        "data": read["data"],
        "toolchain": {"driver": driver, **toolchain(read["packages"], backends.distributions(plan.used_backends))},
    }


def _digest_now(path: Path | None) -> str | None:
    """The digest of a file; None if it no longer exists or cannot be read."""
    try:
        return None if path is None else file_digest(path)
    except OSError:
        return None


def _digest_of(name: str, path: Path, place: DocumentPath) -> str:
    try:
        return file_digest(path)
    except OSError as error:
        raise InputError.at(place, f"cannot read `{name}` from {path}: {error.strerror}") from None
