"""Sections of a manifest that plug-ins give their meaning. A plug-in provides one under its key in `model`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from etbuild import plugins
from etbuild.errors import DocumentPath, Problem
from etbuild.manifest.sections import Manifest

_SECTIONS = ("adapters",)
CheckName = Callable[[str, DocumentPath], Iterator[Problem]]
"""Yields the problems of the name of a declared input at a place."""


class Section(Protocol):
    """What a plug-in makes of its section, without PyTorch."""

    def check(self, data: Manifest, check_name: CheckName) -> Iterator[Problem]:
        """Yields the problems of the section, and of what methods say about it. The manifest fits its schema."""

    def completed(self, manifest: Manifest) -> Manifest:
        """The manifest with what the section stands for. Without a section that breaks the schema, it is partial."""


def of(manifest: Manifest) -> list[Section]:
    """What plug-ins provide for the sections that a manifest has.

    Raises:
        InputError: The plug-in of a section is not there.
    """
    model = manifest.get("model", {})
    return [plugins.load("manifest_section", name) for name in _SECTIONS if model.get(name)]


def completed(manifest: Manifest) -> Manifest:
    """The manifest with what all its sections stand for."""
    for section in of(manifest):
        manifest = section.completed(manifest)
    return manifest
