"""The types of a manifest's data: `make reference` writes them from `etplugins.precision.parts`."""

from __future__ import annotations

from typing import TypedDict


class Keep(TypedDict, total=False):
    """Data of `etplugins.precision.parts.Keep`."""

    modules: list[str]
    layers: list[str]


class Precision(TypedDict, total=False):
    """Data of `etplugins.precision.parts.Precision`."""

    compute: str
    keep: Keep
