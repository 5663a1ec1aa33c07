"""Judges what the quantization itself changes: the outputs of a quantized method beside those of the float model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from etbuild.comparison import accuracy

LEAST_OF_CHANGES = 3.0
"""Decibels. Below it, half of what inputs change in the outputs is wrong. Networks with random weights in 8 bits had 12
and more; with the ranges of a constant input they had 1, where the SQNR of whole outputs still was 16."""


@dataclass(frozen=True)
class Loss:
    """What a quantization costs.

    Attributes:
        sqnr: The ratio of signal to error in the worst output and the middle call, in decibels; infinite if nothing
            differs. Calls with inputs outside of the calibrated ranges say nothing of the others.
        of_changes: The ratio for what differs from one call to another, in the worst output and the middle call: an
            output may be large and hardly depend on the inputs. Infinite if no output differs between two calls.
    """

    sqnr: float
    of_changes: float

    def __str__(self) -> str:
        return "exact" if math.isinf(self.sqnr) and self.sqnr > 0 else f"SQNR {self.sqnr:.1f} dB"

    @property
    def problem(self) -> str | None:
        """What to say of a method that is lost; None if the quantization is usable."""
        if self.of_changes >= LEAST_OF_CHANGES:
            return None
        return (
            f"its quantization loses what the inputs change in the outputs: against the float model {self}, and "
            f"{self.of_changes:.1f} dB of what differs between calls, where {LEAST_OF_CHANGES:.0f} is the least. "
            "Usually the calibration has other inputs than the method gets: calibrate on real ones"
        )


def loss(in_float: Sequence[Sequence[Any]], quantized: Sequence[Sequence[Any]]) -> Loss:
    """What a quantization costs, by the outputs of the same calls.

    Args:
        in_float: For each call, the outputs of the float model.
        quantized: For each call, those of the quantized method.
    """
    ratios, of_changes = [math.inf], [math.inf]
    for wanted, got in zip(zip(*in_float, strict=True), zip(*quantized, strict=True), strict=True):
        pairs = [
            (want.detach().to(torch.float64), one.detach().to(torch.float64))
            for want, one in zip(wanted, got, strict=True)
            if isinstance(want, torch.Tensor) and want.is_floating_point() and bool(want.isfinite().all())
        ]
        if pairs:
            of_calls = sorted(accuracy.sqnr(got, want) for want, got in pairs)
            ratios.append(of_calls[len(of_calls) // 2])
            of_changes.append(_of_changes(pairs))
    return Loss(min(ratios), min(of_changes))


def _of_changes(calls: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """The ratio in the middle call. One with inputs outside of the calibrated ranges says nothing of the others."""
    ratios = []
    for shape in {want.shape for want, _ in calls}:
        alike = [pair for pair in calls if pair[0].shape == shape]
        want, got = (torch.stack(side) for side in zip(*alike, strict=True))
        changes, found = (side - side.median(0).values for side in (want, got))
        least = 1e-6 * float(want.abs().max()) if want.numel() else math.inf
        ratios += [accuracy.sqnr(b, a) for a, b in zip(changes, found, strict=True) if float(a.abs().max()) > least]
    return sorted(ratios)[len(ratios) // 2] if ratios else math.inf
