"""What Vela may estimate: a section of a manifest."""

from __future__ import annotations

from etbuild.plan.kinds import NumberByMethod
from etbuild.plan.part import Part


class Vela(Part, definition="vela", minProperties=1):
    """The most that Vela may estimate: for every method with `ethos-u`, or by method.

    Attributes:
        cycles: Cycles of the NPU for a call. For example `200000`, `{decode: 50000}`.
        milliseconds: Milliseconds for a call, at the clock of the system. For example `2.5`.
        sram_bytes: Bytes of SRAM that a delegate uses. For example `120000`.
        dram_bytes: Bytes of DRAM that a delegate uses. For example `1000000`.
        flash_bytes: Bytes of flash, on the chip and off it, of all delegates together. For example `500000`.
    """

    cycles: NumberByMethod | None = None
    milliseconds: NumberByMethod | None = None
    sram_bytes: NumberByMethod | None = None
    dram_bytes: NumberByMethod | None = None
    flash_bytes: NumberByMethod | None = None
