"""The types of a manifest's data: `make reference` writes them from `etplugins.arm.parts`."""

from __future__ import annotations

from typing import TypedDict

from etbuild.manifest.sections import Number


class Vela(TypedDict, total=False):
    """Data of `etplugins.arm.parts.Vela`."""

    cycles: Number | dict[str, Number]
    milliseconds: Number | dict[str, Number]
    sram_bytes: Number | dict[str, Number]
    dram_bytes: Number | dict[str, Number]
    flash_bytes: Number | dict[str, Number]
