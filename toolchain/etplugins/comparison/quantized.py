"""Judges what the quantization itself changes: the outputs of a quantized method beside those of the float model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from etplugins.comparison import accuracy

LEAST = 3.0
"""Decibels. Below it, half of an output is wrong. Networks with random weights in 8 bits had 12 and more."""


def loss(in_float: Sequence[Any], quantized: Sequence[Any]) -> float | None:
    """The ratio of signal to error in the worst output, in decibels; infinite if nothing differs, None if no output is
    a floating-point one.

    Args:
        in_float: The outputs of the float model.
        quantized: Those of the quantized method for the same inputs.
    """
    ratios = [
        accuracy.sqnr(got.detach(), want.detach())
        for want, got in zip(in_float, quantized, strict=True)
        if isinstance(want, torch.Tensor) and want.is_floating_point() and bool(want.isfinite().all())
    ]
    return min(ratios) if ratios else None


def shown(found: float) -> str:
    """A ratio for people."""
    return "exact" if math.isinf(found) and found > 0 else f"SQNR {found:.1f} dB"


def says_something(leaves: Sequence[Any]) -> bool:
    """Whether inputs have a part that is not the same number everywhere: an input of zeros is in no range, and what a
    quantization makes of it says nothing of other inputs."""
    tensors = [each for each in leaves if isinstance(each, torch.Tensor) and each.is_floating_point()]
    return not tensors or any(bool((each != each.flatten()[:1]).any()) for each in tensors)


def problem(found: float) -> str | None:
    """What to say of a method that its quantization has spoiled; None if it is usable."""
    if found >= LEAST:
        return None
    return (
        f"its quantization spoils it: against the float model, the example inputs give {shown(found)}, where "
        f"{LEAST:.0f} is the least. Usually the calibration has other inputs than the method gets: calibrate on real "
        "ones"
    )
