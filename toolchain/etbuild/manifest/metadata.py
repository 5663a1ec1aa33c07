"""Metadata in a manifest: what people should know about a program, and the annotations that say it in a registry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from etbuild.errors import Problem, unknown

TITLE = "org.opencontainers.image.title"
"""The annotation that holds a name: that of a program, or of a file. `oras` restores files by it."""
# Keys of https://github.com/opencontainers/image-spec/blob/v1.1.0/annotations.md
_ANNOTATIONS = {
    "version": "org.opencontainers.image.version",
    "license": "org.opencontainers.image.licenses",
    "authors": "org.opencontainers.image.authors",
    "description": "org.opencontainers.image.description",
}


def check(metadata: Mapping[str, Any], weights: Any, of_adapters: Iterable[str]) -> Iterator[Problem]:
    """The problems of metadata that a schema cannot find.

    Args:
        metadata: The metadata. It may break its schema.
        weights: The value of `model.weights`. It may break its schema too.
        of_adapters: The files with the weights of adapters.
    """
    keys = {annotation: f"`metadata.{key}`" for key, annotation in _ANNOTATIONS.items()} | {TITLE: "`name`"}
    for label in _mapping(metadata, "labels"):
        if label in keys:
            message = f"the annotation `{label}` cannot be a label"
            yield Problem(message, ("metadata", "labels", label), f"it is made from {keys[label]}", at_key=True)
    entries = weights if isinstance(weights, list) else [weights]
    files = {str(entry.get("file") if isinstance(entry, dict) else entry) for entry in entries} | {*of_adapters}
    for name, hint in unknown(_mapping(metadata, "weights_licenses"), files):
        message = f"`{name}` is not one of the files of `model.weights`, or of an adapter"
        yield Problem(message, ("metadata", "weights_licenses", name), hint, at_key=True)


def _mapping(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def as_annotations(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The annotations of a program.

    Args:
        metadata: The metadata of a plan.
    """
    texts = {**metadata, "authors": ", ".join(metadata.get("authors", ()))}
    named = {annotation: texts[key] for key, annotation in _ANNOTATIONS.items() if texts.get(key)}
    return {**metadata.get("labels", {}), **named}
