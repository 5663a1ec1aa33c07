"""What plug-ins do with their keys of a manifest.

A plug-in provides a `manifest_section` for a key of `model`, such as `huggingface`, and a `runner` for a contract of
runners, such as `executorch-llm/v1`: a function that yields the problems of a completed manifest with this contract.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol

from etbuild import plugins
from etbuild.errors import DocumentPath, InputError, Problem
from etbuild.manifest.sections import Manifest

_SECTIONS = ("huggingface", "adapters")
"""The keys of `model` that plug-ins give their meaning."""
CheckName = Callable[[str, DocumentPath], Iterator[Problem]]
"""Yields the problems of the name of a declared input at a place."""


class Section(Protocol):
    """What a plug-in does with its key of `model`. The manifest has the key."""

    def completed(self, manifest: Manifest) -> Manifest:
        """The manifest with what the section stands for, such as methods. It fits its schema and may be wrong."""

    def check(self, manifest: Manifest, check_name: CheckName) -> Iterator[Problem]:
        """Yields the problems of a completed manifest that a schema cannot find."""

    def weights(self, manifest: Manifest) -> Iterator[str]:
        """Yields the names of the files with weights that the section stands for."""

    def normalized(self, manifest: Manifest) -> Manifest:
        """A checked manifest, completed, and with what the section asks for but does not say."""


def missing(manifest: Manifest) -> Iterator[Problem]:
    """Yields a problem for each section whose plug-in is not there."""
    for key in _SECTIONS:
        if key in manifest.get("model", {}) and key not in plugins.group("manifest_section"):
            yield Problem(f"no plug-in here provides the section `{key}`", ("model", key), at_key=True)


def completed(manifest: Manifest) -> Manifest:
    """The manifest with what the sections of plug-ins stand for."""
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
    """Yields the names of the files with weights that the sections of plug-ins stand for."""
    for section in _sections(manifest):
        yield from section.weights(manifest)


def normalized(manifest: Manifest) -> Manifest:
    """A checked manifest, completed, and with what the sections of plug-ins ask for but do not say."""
    for section in _sections(manifest):
        manifest = section.normalized(manifest)
    return manifest


def _sections(manifest: Manifest) -> list[Section]:
    group = "manifest_section"
    used = {key: plugin for key, plugin in plugins.group(group).items() if key in manifest.get("model", {})}
    absent = {key: plugin.not_named() for key, plugin in used.items() if not plugin.is_here}
    if absent:
        raise InputError([replace(absent[key], path=("model", key), at_key=True) for key in absent])
    return [plugins.load(group, key) for key in used]
