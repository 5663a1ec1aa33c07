"""Metadata in a manifest: facts about a program for people, and their annotations in a registry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from etbuild.errors import Problem, unknown
from etbuild.manifest.sections import Metadata, Model
from etbuild.manifest.weights import checkpoints

TITLE = "org.opencontainers.image.title"
"""The annotation for the name of a program or of a file. `oras` restores files under it."""
# Keys of https://github.com/opencontainers/image-spec/blob/v1.1.0/annotations.md
_ANNOTATIONS = {
    "version": "org.opencontainers.image.version",
    "license": "org.opencontainers.image.licenses",
    "authors": "org.opencontainers.image.authors",
    "description": "org.opencontainers.image.description",
}


def check(metadata: Metadata, model: Model, of_plugins: Iterator[str]) -> Iterator[Problem]:
    """Yields the problems of metadata that a schema cannot find.

    Args:
        metadata: The metadata.
        model: The model.
        of_plugins: The files with weights from sections of plug-ins.
    """
    keys = {annotation: f"`metadata.{key}`" for key, annotation in _ANNOTATIONS.items()} | {TITLE: "`name`"}
    for label in metadata.get("labels", {}):
        if label in keys:
            message = f"the annotation `{label}` cannot be a label"
            yield Problem(message, ("metadata", "labels", label), f"it is made from {keys[label]}", at_key=True)
    files = {checkpoint["file"] for checkpoint in checkpoints(model).values()} | {*of_plugins}
    for name, hint in unknown(metadata.get("weights_licenses", {}), files):
        message = f"`{name}` is not one of the files of `model.weights`, or of an adapter"
        yield Problem(message, ("metadata", "weights_licenses", name), hint, at_key=True)


def as_annotations(metadata: Metadata) -> dict[str, str]:
    """The annotations of a program.

    Args:
        metadata: The metadata of a plan.
    """
    texts: Mapping[str, object] = {**metadata, "authors": ", ".join(metadata.get("authors", ()))}
    named = {annotation: str(texts[key]) for key, annotation in _ANNOTATIONS.items() if texts.get(key)}
    return {**metadata.get("labels", {}), **named}
