"""Provenance: for each program, a statement of what it was made from, derived from the index of its build.

A statement is an in-toto statement (https://in-toto.io/Statement/v1) with SLSA's predicate for provenance
(https://slsa.dev/spec/v1.0/provenance). It holds no time, so equal inputs give equal bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from etbuild.results import Index
from etkit.registry.oci.descriptors import Descriptor

MEDIA_TYPE = "application/vnd.in-toto+json"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:rules-executorch:build:v1"
UNNAMED_BUILDER = "urn:rules-executorch:builder:unnamed"
"""The builder of a statement if none is named."""

_FILES = "sha256OfFileList"
"""The name of the algorithm for a digest over the files of an installed package. It is not the digest of a wheel."""


def statement(index: Index, files: Mapping[str, Descriptor], builder: str) -> dict[str, Any]:
    """The statement of a program.

    Args:
        index: The index of its build.
        files: Its files by name.
        builder: A URI for who has built it.
    """
    inputs = index["inputs"]
    toolchain = inputs["toolchain"]
    materials = [
        *(_file("source", name, sha256) for name, sha256 in inputs["sources"].items()),
        *(_file("data", name, sha256) for name, sha256 in inputs["data"].items()),
        {
            "name": "driver",
            "uri": f"pkg:generic/etbuild@{toolchain['driver']['version']}",
            "digest": {_FILES: toolchain["driver"]["sha256"]},
        },
        *(
            {"name": f"package/{name}", "uri": f"pkg:pypi/{name}@{each['version']}", "digest": {_FILES: each["sha256"]}}
            for name, each in toolchain["distributions"].items()
        ),
    ]
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": blob.sha256}} for name, blob in sorted(files.items())],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"plan": inputs["plan"]},
                "internalParameters": {
                    "key": index["key"],
                    "python": toolchain["python"],
                    "startup": toolchain.get("startup", {}),
                },
                "resolvedDependencies": sorted(materials, key=lambda material: str(material["name"])),
            },
            "runDetails": {"builder": {"id": builder}},
        },
    }


def _file(kind: str, name: str, sha256: str) -> dict[str, Any]:
    return {"name": f"{kind}/{name}", "digest": {"sha256": sha256}}


def builder_of(content: Any) -> str | None:
    """The builder that a statement names; None if it is not such a statement."""
    try:
        builder = content["predicate"]["runDetails"]["builder"]["id"]
    except (KeyError, TypeError, IndexError):
        return None
    return builder if isinstance(builder, str) else None
