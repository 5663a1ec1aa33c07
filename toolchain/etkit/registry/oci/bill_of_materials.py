"""A bill of materials of a program in the format CycloneDX: its weights, its sources and its toolchain, with licenses.

It holds no time, and its serial number comes from its content, so equal builds have equal bills.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import uuid
from typing import Any

from etbuild.errors import InputError
from etbuild.extras import DISTRIBUTION, install_hint
from etbuild.results import Index
from etkit.registry.oci.descriptors import Descriptor
from etkit.registry.oci.package import Program
from etplugins.applications import metadata

try:
    from cyclonedx.contrib.license.factories import LicenseFactory
    from cyclonedx.model import HashAlgorithm, HashType, Property
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output.json import JsonV1Dot6
    from packageurl import PackageURL
except ImportError:
    message = "a bill of materials needs the package `cyclonedx-python-lib`"
    raise InputError.of(message, install_hint("sbom")) from None

MEDIA_TYPE = "application/vnd.cyclonedx+json"
_NAMESPACE = uuid.UUID("8b0c4fd4-6d3c-5a0e-9d5c-3b1a0f4f1b52")  # the namespace of the serial numbers of these bills
_FILE_LIST = "rules-executorch:sha256OfFileList"  # the name of the digest, which is not that of a wheel


def make(program: Program, index: Index) -> bytes:
    """The bill of materials of a program, as JSON.

    The licenses of packages are those that installed packages state. A package that is not installed here, or has
    another version here, has none.

    Args:
        program: The program.
        index: The index of its build.
    """
    inputs, stated = index["inputs"], index["inputs"]["plan"].get("metadata", {})
    bom = Bom()
    bom.metadata.component = Component(
        name=program.name,
        type=ComponentType.MACHINE_LEARNING_MODEL,
        version=stated.get("version"),
        description=stated.get("description"),
        licenses=_licenses(stated.get("license")),
        bom_ref=f"program/{program.name}",
    )
    for name, blob in program.files.items():
        bom.components.add(_file(name, f"artifact/{name}", ComponentType.FILE, blob.sha256))
    for name, sha256 in inputs["sources"].items():
        bom.components.add(_file(name, f"source/{name}", ComponentType.FILE, sha256))
    for name, sha256 in inputs["data"].items():
        found = stated.get("weights_licenses", {}).get(name)
        bom.components.add(_file(name, f"data/{name}", ComponentType.DATA, sha256, found))
    driver = inputs["toolchain"]["driver"]
    for name, release in {DISTRIBUTION: driver, **inputs["toolchain"]["distributions"]}.items():
        bom.components.add(
            Component(
                name=name,
                type=ComponentType.LIBRARY,
                version=release["version"],
                purl=PackageURL("pypi", name=name, version=release["version"]),
                licenses=_licenses(_installed_license(name, release["version"])),
                properties=[Property(name=_FILE_LIST, value=release["sha256"])],
                bom_ref=f"package/{name}",
            )
        )
    bom.register_dependency(bom.metadata.component, bom.components)
    return _serialized(bom)


def layer(program: Program, bill: bytes) -> Descriptor:
    """The descriptor of a bill of materials as a blob."""
    return Descriptor.of(MEDIA_TYPE, bill, {metadata.TITLE: f"{program.name}.cdx.json"})


def _file(name: str, reference: str, kind: ComponentType, sha256: str, found: str | None = None) -> Component:
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=sha256)]
    return Component(name=name, type=kind, hashes=hashes, licenses=_licenses(found), bom_ref=reference)


def _licenses(text: str | None) -> list[Any]:
    return [] if text is None else [LicenseFactory().make_from_string(text)]


def _installed_license(name: str, version: str) -> str | None:
    """The license that an installed package states; None if it states none, or if another version is installed."""
    try:
        found = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    if found["Version"].partition("+")[0] != version.partition("+")[0]:
        return None
    stated = [value for field in ("License-Expression", "License") for value in found.get_all(field, []) if value]
    if stated and "\n" not in stated[0] and len(stated[0]) < 200:
        return str(stated[0])
    kinds = [each.rpartition(" :: ")[2] for each in found.get_all("Classifier", []) if each.startswith("License :: ")]
    return kinds[0] if kinds else None


def _serialized(bom: Bom) -> bytes:
    """The bill as JSON, without the time that the library adds.

    The serial number follows from the rest. Two bills have the same one only if they are equal, also in licenses.
    """
    content = json.loads(JsonV1Dot6(bom).output_as_string())
    content["metadata"].pop("timestamp", None)
    content.pop("serialNumber", None)
    content["serialNumber"] = uuid.uuid5(_NAMESPACE, json.dumps(content, sort_keys=True)).urn
    text = json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False)
    return re.sub(r"\s*\Z", "\n", text).encode()
