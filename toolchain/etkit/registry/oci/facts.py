"""The facts about a program that people follow over time: its size, what is delegated, and its memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from etbuild.errors import InputError
from etbuild.files import json_file
from etbuild.results import Report
from etkit.registry.oci.descriptors import Descriptor
from etkit.registry.oci.package import LAYER_TYPES, Package, Program

Load = Callable[[Descriptor, int], bytes]
"""Returns the content of a blob. The second argument is the largest size in bytes."""


@dataclass(frozen=True)
class Facts:
    """A program of a version.

    Attributes:
        digest: The digest of its manifest.
        size: The bytes of the program, its named data and its tokenizer.
        delegated: The part of its operators that run in delegates, from 0 to 1. None if its report does not list them.
        memory: The planned memory of the method that needs most, in bytes. None if its report cannot be read.
        version: The version of its metadata, if there is one.
    """

    digest: str
    size: int
    delegated: float | None
    memory: int | None
    version: str | None


_SHIPPED = {LAYER_TYPES[kind] for kind in ("program", "named_data", "tokenizer")}


def read(content: Package, program: Program, load: Load) -> Facts:
    """The facts about a program of a package."""
    found = report(program, load)
    return Facts(
        program.manifest.digest,
        sum(blob.size for blob in program.layers.values() if blob.media_type in _SHIPPED),
        _delegated(found) if found else None,
        max((sum(method["memory"]) for method in found["methods"].values()), default=0) if found else None,
        content.index(program)["inputs"]["plan"].get("metadata", {}).get("version"),
    )


def report(program: Program, load: Load) -> Report | None:
    """The report of a program; None if it has another schema."""
    name = f"{program.name}.report.json"
    blob = program.layers.get(name)
    if blob is None:
        return None
    data = load(blob, json_file.MAX_BYTES)
    try:
        found: Report = json_file.content(data, Path(name), json_file.Format("a report", "report"))
        return found
    except InputError:
        return None


def _delegated(report: Report) -> float | None:
    """The part of the operators that run in delegates; None if the report does not list them."""
    counts = [method["operators"] for method in report["methods"].values() if "operators" in method]
    inside = sum(sum(each.values()) for count in counts for each in count["delegated"].values())
    outside = sum(sum(count["fallback"].values()) for count in counts)
    return inside / (inside + outside) if inside + outside else None
