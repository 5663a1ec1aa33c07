"""The key of a program: a digest of its plan, its sources and data, and the toolchain."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from etbuild import backends
from etbuild.errors import BuildError, DocumentPath, InputError
from etbuild.files.digests import digest, file_digest
from etbuild.inputs.checkpoints import with_shards
from etbuild.inputs.declared import Inputs
from etbuild.inputs.import_graph import UsedSources
from etbuild.inputs.step_files import OF_PROGRAMS, digest_of
from etbuild.inputs.toolchain import toolchain
from etbuild.plan.plan import Plan
from etbuild.version import VERSION

if TYPE_CHECKING:
    from etbuild.results import Driver, FileDigests, FilesAndPackages, KeyInputs

KEY_SCHEMA = "executorch-key/v2"


def describe_inputs(plan: Plan, inputs: Inputs, used: UsedSources) -> KeyInputs:
    """Describes a whole plan as `describe` does, with the files that it uses.

    Raises:
        InputError: A file is missing or cannot be read, or the version of a package is unknown.
    """
    return describe(plan, describe_files(inputs, used, data_in_key(inputs, plan)))


def data_in_key(inputs: Inputs, plan: Plan) -> dict[str, DocumentPath]:
    """The data that a plan names, and all other declared data, each with the place that names it."""
    return with_declared(inputs, plan.data_names)


def with_declared(inputs: Inputs, names: Mapping[str, DocumentPath]) -> dict[str, DocumentPath]:
    """Adds the files of checkpoints and all declared data to the named data. A model may open a declared file that the
    manifest does not name."""
    return {**dict.fromkeys(inputs.data, ("model",)), **with_shards(names, inputs)}


def describe(plan: Plan, read: FilesAndPackages) -> KeyInputs:
    """Everything that a build depends on: the plan, digests of the sources and data that it uses, and the toolchain.

    Args:
        plan: The plan.
        read: The result of `describe_files`.

    Raises:
        InputError: A package that the sources import belongs to no distribution, so its version is unknown.
    """
    steps = {step: digest_of([step], plan.driver_parts(step)) for step in sorted(OF_PROGRAMS)}
    driver: Driver = {"version": VERSION, "sha256": digest(steps), "steps": steps}
    return {
        "schema": KEY_SCHEMA,
        "plan": plan.to_json(),
        "sources": read["sources"],
        "data": read["data"],
        "toolchain": {"driver": driver, **toolchain(read["packages"], backends.distributions(plan.used_backends))},
    }


def describe_files(inputs: Inputs, used: UsedSources, names: Mapping[str, DocumentPath]) -> FilesAndPackages:
    """Digests of files, and the imported packages.

    Args:
        inputs: The declared inputs.
        used: The sources.
        names: The data, each with the place in the manifest that names it.

    Raises:
        InputError: A file that the plan names is not declared, or cannot be read.
    """
    return {
        "sources": {name: hashlib.sha256(content).hexdigest() for name, content in sorted(used.contents.items())},
        "data": {name: _digest_of(name, inputs.find_data(name, path), path) for name, path in sorted(names.items())},
        "packages": sorted(used.packages),
    }


def check_unchanged(read: FileDigests, inputs: Inputs, used: UsedSources, names: Mapping[str, DocumentPath]) -> None:
    """Checks that the files still have the content that was digested. Otherwise the cache would keep a wrong result.

    Args:
        read: The result of `describe_files` when the build began.
        inputs: The declared inputs.
        used: The sources.
        names: The data, each with the place in the manifest that names it.

    Raises:
        BuildError: A source or a data file has changed.
    """
    sources = {name: _digest_now(path) for name, path in used.sources.items()}
    data = {name: _digest_now(inputs.find(name)) for name in names}
    for before, now in ((read["sources"], sources), (read["data"], data)):
        for name, found in now.items():
            if found != before[name]:
                message = f"`{name}` changed during the build"
                raise BuildError.of(message, "build again")


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
