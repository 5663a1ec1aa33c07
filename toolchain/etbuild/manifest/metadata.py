"""Metadata in a manifest: what people should know about a program, and the annotations that say it in a registry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from etbuild.errors import Problem

TITLE = "org.opencontainers.image.title"
"""The annotation that holds a name: that of a program, or of a file. `oras` restores files by it."""
# Keys of https://github.com/opencontainers/image-spec/blob/v1.1.0/annotations.md
_ANNOTATIONS = {
    "version": "org.opencontainers.image.version",
    "license": "org.opencontainers.image.licenses",
    "authors": "org.opencontainers.image.authors",
    "description": "org.opencontainers.image.description",
}


def check(labels: Mapping[str, Any]) -> Iterator[Problem]:
    """The problems of labels that say what another key of the metadata, or the name of the program, says."""
    keys = {annotation: f"`metadata.{key}`" for key, annotation in _ANNOTATIONS.items()} | {TITLE: "`name`"}
    for label in labels:
        if label in keys:
            message = f"the annotation `{label}` cannot be a label"
            yield Problem(message, ("metadata", "labels", label), f"it is made from {keys[label]}", at_key=True)


def as_annotations(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The annotations of a program.

    Args:
        metadata: The metadata of a plan.
    """
    texts = {**metadata, "authors": ", ".join(metadata.get("authors", ()))}
    named = {annotation: texts[key] for key, annotation in _ANNOTATIONS.items() if texts.get(key)}
    return {**metadata.get("labels", {}), **named}
