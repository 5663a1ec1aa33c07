"""Judges the effect of quantization: compares the outputs of a quantized method with those of the float model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from etbuild.errors import counted
from etplugins.comparison import accuracy

LEAST = 3.0
"""The least ratio in decibels: below it, half of an output is wrong. Random networks in 8 bits had 12 or more."""
_EXACT = 100.0  # decibels that count for a sample without any error


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


def shown(ratios: Sequence[float]) -> str:
    """The text of the ratios of some calls, for people."""
    worst = min(ratios)
    text = "exact" if math.isinf(worst) and worst > 0 else f"SQNR {worst:.1f} dB"
    if len(ratios) == 1 or text == "exact":
        return text
    return f"{text} in the worst of {counted(len(ratios), 'sample')}, {_mean(ratios):.1f} dB on average,"


def _mean(ratios: Sequence[float]) -> float:
    """The average. An exact sample counts as a good one: otherwise it would hide the others."""
    return sum(min(each, _EXACT) for each in ratios) / len(ratios)


def says_something(leaves: Sequence[Any]) -> bool:
    """Whether one of the inputs has different numbers. An input of zeros fits no calibrated range, so its result says
    nothing about other inputs."""
    tensors = [each for each in leaves if isinstance(each, torch.Tensor) and each.is_floating_point()]
    return not tensors or any(bool((each != each.flatten()[:1]).any()) for each in tensors)


def beyond(leaves: Sequence[Any], ranges: Sequence[tuple[float, float] | None]) -> str | None:
    """The text about an input that is far outside of the range for which it is quantized; None if there is none.

    Args:
        leaves: The inputs of a call.
        ranges: The least and the largest number to which each of them is quantized; None for an input that is not.
    """
    for number, (value, given) in enumerate(zip(leaves, ranges, strict=False)):
        if given is None or not isinstance(value, torch.Tensor) or not value.is_floating_point() or not value.numel():
            continue
        (low, high), (least, most) = map(float, torch.aminmax(value)), given
        if max(least - low, high - most) > most - least:
            return (
                f"input {number} goes from {low:.3g} to {high:.3g}, and its calibration from {least:.3g} to {most:.3g}"
            )
    return None


def problem(ratios: Sequence[float], outside: str | None = None) -> str | None:
    """The text about a method that its quantization has spoiled; None if the method is usable.

    Args:
        ratios: The ratios of signal to error of its samples.
        outside: The text of `beyond`.
    """
    if _mean(ratios) >= LEAST:
        return None
    what = "the example inputs give" if len(ratios) == 1 else "its samples give"
    why = "Usually the calibration has other inputs than the method gets, or the model is not trained"
    way = "calibrate on real inputs, with the weights of a training"
    if outside is not None:
        why = f"In them, {outside}"
        way = "calibrate on such inputs, or write others for `example_inputs` or `samples`"
    return (
        f"its quantization spoils it: against the float model, {what} {shown(ratios).rstrip(',')}, where "
        f"{LEAST:.0f} is the least. {why}: {way}"
    )
