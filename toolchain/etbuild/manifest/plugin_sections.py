"""The use of a manifest's sections by plug-ins.

A plug-in provides a `manifest_section` for a place, such as `model.huggingface` or `methods.*.quantize`, and a `runner`
for a contract of runners, such as `executorch-llm/v1`: a function that yields the problems of a completed manifest with
this contract. Plans hold a section as a subclass of `Part`, from the group `manifest_keys`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from etbuild import plugins
from etbuild.errors import DocumentPath, InputError, Problem
from etbuild.manifest import partitioners
from etbuild.manifest.sections import Manifest

_GROUP = "manifest_section"
_PLACES = (
    *("model.huggingface", "model.adapters", "methods.*.adapter", "defaults.quantize", "methods.*.quantize", "recipe"),
    *("for", "metadata", "samples", "methods.*.samples", "methods.*.io", "checks.agreement", "tokenizer"),
    *("tests", "checks.compare", "checks.max_error", "checks.metric", "checks.min_sqnr", "checks.text", "qualify"),
    *("model.dtype.compute", "checks.prompts", "checks.vela"),
)
"""The places that plug-ins give their meaning."""


class Section:
    """The functions of a plug-in for a section that the manifest has. A subclass overrides what there is to do."""

    def completed(self, manifest: Manifest) -> Manifest:
        """The manifest with the values that the section implies, such as methods. It may still be wrong."""
        return manifest

    def check(self, manifest: Manifest) -> Iterable[Problem]:
        """The problems of a completed manifest that a schema cannot find."""
        del manifest
        return ()

    def weights(self, manifest: Manifest) -> Iterable[str]:
        """The names of the files with weights that the section implies."""
        del manifest
        return ()

    def backends(self, manifest: Manifest) -> Iterable[str]:
        """The names of the backends in the section, also where no method uses it."""
        del manifest
        return ()

    def normalized(self, manifest: Manifest) -> Manifest:
        """A completed and checked manifest, with all values that the section needs."""
        return manifest


def missing(manifest: Manifest) -> Iterator[Problem]:
    """Yields a problem for each section without its plug-in."""
    for place in _PLACES:
        for path in _found(manifest, place.split(".")) if place not in plugins.group(_GROUP) else ():
            yield Problem(f"no plug-in here provides the section `{path[-1]}`", path, at_key=True)


def completed(manifest: Manifest) -> Manifest:
    """The manifest with the values that the sections of plug-ins imply."""
    for section in _sections(manifest):
        manifest = section.completed(manifest)
    return manifest


def check(manifest: Manifest) -> Iterator[Problem]:
    """Yields the problems that plug-ins find in a completed manifest."""
    for section in _sections(manifest):
        yield from section.check(manifest)
    if "runner" in manifest:
        try:
            problems = plugins.load("runner", manifest["runner"], ("runner",))(manifest)
        except InputError as error:  # its plug-in is not here
            problems = error.problems
        yield from problems


def weights(manifest: Manifest) -> Iterator[str]:
    """Yields the names of the files with weights that the sections of plug-ins imply."""
    for section in _sections(manifest):
        yield from section.weights(manifest)


def needed(manifest: Manifest) -> set[str]:
    """The packages of the plug-ins whose sections and backends stand in a checked manifest.

    Planning needs their code. The plan itself may use fewer, for example if each method replaces what `defaults` says.
    """
    manifest = completed(manifest)
    named = partitioners.names(manifest)
    for section in _sections(manifest):
        named.update(section.backends(manifest))
    sections, provided = plugins.group(_GROUP), plugins.group("backend")
    of_backends = {provided[name].package for name in named & provided.keys()}
    return of_backends | {sections[place].package for place in _standing(manifest)}


def normalized(manifest: Manifest) -> Manifest:
    """A checked manifest, completed with all values that the sections of plug-ins need."""
    manifest = completed(manifest)
    for section in _sections(manifest):
        manifest = section.normalized(manifest)
    return manifest


def _sections(manifest: Manifest) -> list[Section]:
    """The plug-ins' functions for the sections of a manifest. One may have several places."""
    group, found = plugins.group(_GROUP), _standing(manifest)
    absent = {group[place].name: (group[place], found[place][0]) for place in found if not group[place].is_here}
    if absent:
        raise InputError([replace(each.not_named(), path=path, at_key=True) for each, path in absent.values()])
    return [section() for section in dict.fromkeys(plugins.load(_GROUP, place) for place in found)]


def _standing(manifest: Manifest) -> dict[str, list[DocumentPath]]:
    """The places of plug-ins that a manifest has, each with its paths."""
    return {place: paths for place in plugins.group(_GROUP) if (paths := [*_found(manifest, place.split("."))])}


def _found(part: Mapping[str, Any], keys: list[str]) -> Iterator[DocumentPath]:
    """The paths of a place below a part of a manifest. `*` stands for each key."""
    for key in part if keys[0] == "*" else {keys[0]} & part.keys() if isinstance(part, dict) else ():
        if len(keys) == 1:
            yield (key,)
        else:
            yield from ((key, *path) for path in _found(part[key], keys[1:]))
