"""The types of a manifest's data: `make reference` writes them from `etplugins.comparison.parts`."""

from __future__ import annotations

from typing import TypedDict

from etbuild.manifest.sections import Number


class Tolerance(TypedDict, total=False):
    """Data of `etplugins.comparison.parts.Tolerance`."""

    atol: Number
    rtol: Number
    of_largest: Number


class CompareMethod(TypedDict, total=False):
    """Data of `etplugins.comparison.parts.CompareMethod`."""

    tolerance: Tolerance
    ranges: list[list[Number] | None]
    leave_out: str


class Compare(TypedDict, total=False):
    """Data of `etplugins.comparison.parts.Compare`."""

    tolerance: Tolerance
    leave_out: str
    work: int
    methods: dict[str, CompareMethod]
