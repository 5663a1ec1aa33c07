"""The use of a manifest's keys by plug-ins.

A plug-in provides a `manifest_section` for a key of `model`, such as `huggingface`, and a `runner` for a contract of
runners, such as `executorch-llm/v1`: a function that yields the problems of a completed manifest with this contract.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from etbuild import plugins
from etbuild.errors import DocumentPath, Problem
from etbuild.manifest.sections import Manifest

_SECTIONS = ("huggingface", "adapters")
"""The keys of `model` that belong to plug-ins."""
CheckName = Callable[[str, DocumentPath], Iterator[Problem]]
"""Yields the problems of the name of a declared input at a place."""


class Section(Protocol):
    """The functions of a plug-in for its key of `model`. The manifest has the key."""

    def completed(self, manifest: Manifest) -> Manifest:
        """The manifest with the values that the section implies, such as methods. It may still be wrong."""

    def check(self, manifest: Manifest, check_name: CheckName) -> Iterator[Problem]:
        """Yields the problems of a completed manifest that a schema cannot find."""

    def weights(self, manifest: Manifest) -> Iterator[str]:
        """Yields the names of the files with weights that the section implies."""

    def normalized(self, manifest: Manifest) -> Manifest:
        """A checked manifest, completed with all values that the section needs."""


def missing(manifest: Manifest) -> Iterator[Problem]:
    """Yields a problem for each section without its plug-in."""
    for key in _SECTIONS:
        if key in manifest.get("model", {}) and key not in plugins.group("manifest_section"):
            yield Problem(f"no plug-in here provides the section `{key}`", ("model", key), at_key=True)


def completed(manifest: Manifest) -> Manifest:
    """The manifest with the values that the sections of plug-ins imply."""
    for section in _sections(manifest):
        manifest = section.completed(manifest)
    return manifest


def check(manifest: Manifest, check_name: CheckName) -> Iterator[Problem]:
    """Yields the problems that plug-ins find in a completed manifest."""
    for section in _sections(manifest):
        yield from section.check(manifest, check_name)
    if "runner" in manifest:
        yield from plugins.load("runner", manifest["runner"])(manifest)


def weights(manifest: Manifest) -> Iterator[str]:
    """Yields the names of the files with weights that the sections of plug-ins imply."""
    for section in _sections(manifest):
        yield from section.weights(manifest)


def normalized(manifest: Manifest) -> Manifest:
    """A checked manifest, completed with all values that the sections of plug-ins need."""
    for section in _sections(manifest):
        manifest = section.normalized(manifest)
    return manifest


def _sections(manifest: Manifest) -> list[Section]:
    model, group = manifest.get("model", {}), "manifest_section"
    return [plugins.load(group, key) for key in plugins.group(group) if key in model]
