"""The types of a manifest's data: `make reference` writes them from `etplugins.samples.parts`."""

from __future__ import annotations

from typing import TypedDict

from etbuild.manifest.sections import Number


class Image(TypedDict, total=False):
    """Data of `etplugins.samples.parts.Image`."""

    size: list[int]
    fit: str
    colors: str
    layout: str
    mean: list[Number]
    deviation: list[Number]


class Sound(TypedDict, total=False):
    """Data of `etplugins.samples.parts.Sound`."""

    rate: int
    length: int
    channels: int


class Samples(TypedDict, total=False):
    """Data of `etplugins.samples.parts.Samples`."""

    files: str
    count: int
    loader: str
    image: Image
    sound: Sound
    keys: list[str]
    labels: str
