"""The types of a manifest's data: `make reference` writes them from `etplugins.applications.parts`."""

from __future__ import annotations

from typing import TypedDict

from etbuild.manifest.sections import Number


class Application(TypedDict, total=False):
    """Data of `etplugins.applications.parts.Application`."""

    kind: str
    kernels: list[str]
    backends: list[str]


class Described(TypedDict, total=False):
    """Data of `etplugins.applications.parts.Described`."""

    name: str
    meaning: str
    layout: str
    colors: str
    mean: list[Number]
    deviation: list[Number]
    range: list[Number]
    unit: str
    labels: list[str]
