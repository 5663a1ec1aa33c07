"""Compares the outputs of a program with the expected ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from etbuild.errors import counted
from etbuild.model.tensor_bytes import dtype_name
from etplugins.comparison.parts import Tolerance

_BEYOND_SAMPLES = 4  # times the largest error of the samples: a few samples do not show the largest effect of rounding
_WORST = 3  # elements that a message shows
_DIGITS = (7, 9, 17)  # of a number in a message: 9 digits tell all numbers of float32 apart, 17 those of float64
_FLOAT = Tolerance(0.0, 1e-3, 1e-4)
_SMALL_FLOAT = Tolerance(0.0, 1e-2, 1e-2)
_QUANTIZED = Tolerance(0.0, 0.0, 0.05)
_ZEROS = Tolerance(1e-6, 0.0, 0.0)
_SMALL_ZEROS = Tolerance(1e-3, 0.0, 0.0)
_EXACT = Tolerance(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Measured:
    """How far two lists of outputs are from each other.

    Attributes:
        max_error: The largest absolute difference. Infinite if one has NaN or an infinity where the other has not.
        sqnr: The ratio of signal to error, in decibels; infinite if nothing differs.
    """

    max_error: float
    sqnr: float

    def __str__(self) -> str:
        exact = "exact" if self.max_error == 0 else f"largest error {self.max_error:.3g}"
        return exact if math.isinf(self.sqnr) else f"{exact}, SQNR {self.sqnr:.1f} dB"


def default_tolerance(expected: torch.Tensor, quantized: bool) -> Tolerance:
    """The tolerance of an output for which the manifest has none.

    Args:
        expected: The expected output.
        quantized: Whether the method is quantized, and nothing shows how far rounding moves its outputs.
    """
    if not expected.is_floating_point():
        return _EXACT
    small = expected.element_size() < 4
    if not expected.any():  # other tolerances are relative to the elements, and would allow nothing
        return _SMALL_ZEROS if small else _ZEROS
    if quantized:
        return _QUANTIZED
    return _SMALL_FLOAT if small else _FLOAT


def differences(
    actual: Sequence[Any], expected: Sequence[Any], tolerance: Tolerance | None, quantized: bool, name: str = "output"
) -> list[str]:
    """The problems of the outputs of a call, a text for each output; empty if they are right.

    NaN equals NaN, and an infinity equals itself.

    Args:
        actual: The outputs of the program.
        expected: Those of the model.
        tolerance: How far an element may be from the expected one; None for the default of each output.
        quantized: Whether the method is quantized.
        name: What they are, for messages.
    """
    found = wrong_outputs(actual, expected, tolerance, quantized, name)
    if expected and all(map(_nothing, expected)):
        found.append(f"each expected {name} has only NaN, so there is nothing to compare")
    return found


def wrong_outputs(
    actual: Sequence[Any], expected: Sequence[Any], tolerance: Tolerance | None, quantized: bool, name: str = "output"
) -> list[str]:
    """Like `differences`, but an output may consist of NaN only."""
    if len(actual) != len(expected):
        return [f"the program has {counted(len(actual), name)}, and the model has {len(expected)}"]
    found = []
    for index, (one, other) in enumerate(zip(actual, expected, strict=True)):
        wrong = _difference(one, other, tolerance, quantized)
        if wrong is not None:
            found.append(f"{name} {index}: {wrong}" if len(expected) > 1 else f"the {name}: {wrong}")
    return found


def unexplained(
    actual: Sequence[Any],
    expected: Sequence[Any],
    samples: Sequence[Sequence[Any]],
    tolerance: Tolerance | None,
    quantized: bool,
    beyond: int = _BEYOND_SAMPLES,
) -> list[int]:
    """Indices of the outputs that are wrong, and whose errors the effect of rounding does not explain.

    Args:
        actual: The outputs of the program.
        expected: Those of the model.
        samples: Outputs of the model in which results were rounded otherwise.
        tolerance: How far an element may be from the expected one in addition; None for the default of each output.
        quantized: Whether the method is quantized.
        beyond: How many times larger an error may be than the largest one of the samples.
    """
    if len(actual) != len(expected):
        return [*range(len(expected))]
    return [
        index
        for index, (one, other, *of_output) in enumerate(zip(actual, expected, *samples, strict=True))
        if _difference(one, other, tolerance, False) is not None
        and not _is_within(one, other, of_output, tolerance, quantized, beyond)
    ]


def show_rounding(
    actual: Sequence[Any],
    expected: Sequence[Any],
    samples: Sequence[Sequence[Any]],
    outputs: Sequence[int],
    tolerance: Tolerance | None,
) -> bool:
    """Whether the samples move at least as many elements of each of these outputs as are wrong. If so, more samples
    would show nothing new."""
    if len(actual) != len(expected):
        return True

    def wrong(index: int, of: Sequence[Sequence[Any]]) -> int:
        want = expected[index]
        if not all(isinstance(each, torch.Tensor) for each in (want, of[0][index])) or not want.is_floating_point():
            return int(any(_difference(each[index], want, tolerance, False) is not None for each in of))
        allowed = tolerance if tolerance is not None else default_tolerance(want, False)
        near = [_right(each[index], want, allowed)[0] for each in of if each[index].shape == want.shape]
        return int((~torch.stack(near)).any(0).sum()) if near else 0

    return all(wrong(index, samples) >= wrong(index, [actual]) for index in outputs)


_FEW = 2  # so many different elements may move in one direction by chance
_UNSEEN = 0.5  # the share of wrong elements that may lie beyond the samples: most samples move all numbers near a tie
_SIMILAR = 4  # numbers whose sizes differ by up to this factor are rounded alike


def _is_within(
    actual: Any, expected: Any, samples: Sequence[Any], tolerance: Tolerance | None, quantized: bool, beyond: int
) -> bool:
    if not all(isinstance(each, torch.Tensor) for each in (actual, expected, *samples)):
        return False
    if actual.dtype != expected.dtype or actual.dim() != expected.dim():
        return False
    if actual.shape != expected.shape:  # a size may depend on values, such as that of `nonzero`
        sizes = [*zip(*(each.shape for each in (expected, *samples)), strict=True)]
        return all(min(found) <= size <= max(found) for size, found in zip(actual.shape, sizes, strict=True))
    alike = [each for each in samples if each.shape == expected.shape]
    if not alike:
        return False
    if expected.is_floating_point():
        allowed = tolerance if tolerance is not None else default_tolerance(expected, False)
        near, by_element = _right(actual, expected, allowed)
        if not bool((near | _moves_as_far(actual, expected, alike, beyond)).all()):
            return False
        if not quantized:
            return True
        own = torch.stack([_errors(each, expected) for each in alike]).amax(0)
        unseen = int((~near & (_errors(actual, expected) > beyond * own)).sum())
        return unseen <= 1 + _UNSEEN * int((~near).sum()) and not _drifts(actual, expected, alike, by_element, beyond)
    counts = [int((each != expected).sum()) for each in alike]
    if int((actual != expected).sum()) > beyond * max(counts):
        return False
    # A number of 8 bits is a quantized one. Larger integers may be indices, which are not near each other.
    moved = [_largest_error(each, expected) for each in alike]
    return expected.element_size() > 1 or (
        _largest_error(actual, expected) <= beyond * max(moved)
        and not (quantized and _drifts(actual, expected, alike, torch.zeros(()), beyond))
    )


def _drifts(
    actual: torch.Tensor,
    expected: torch.Tensor,
    samples: Sequence[torch.Tensor],
    allowed: torch.Tensor,
    beyond: int,
) -> bool:
    """Whether the errors of all elements together exceed those of the samples: on average, in one direction, or in
    proportion to the elements.

    A step of quantization is so large that one element by itself says little. A wrong zero point moves all elements by
    one step; rounding moves a few, in both directions. Samples show most of the effect of rounding on the average, so
    the factor `beyond` is halved here.
    """
    want = expected.to(torch.float64)
    size = torch.where(want.isfinite(), want.abs(), 0.0)
    ratio = want.sign() * _signal(size, _same(actual, expected)) / size.max().clamp(min=1e-300)
    ratio = ratio / ratio.square().mean().sqrt().clamp(min=1e-300)

    def errors(other: torch.Tensor) -> torch.Tensor:
        same = _same(other, expected) | ~want.isfinite()
        return torch.where(same, 0.0, other.to(torch.float64) - want)

    def drifts(other: torch.Tensor) -> torch.Tensor:
        error = errors(other)
        return torch.stack([error.square().mean().sqrt(), error.mean().abs(), (error * ratio).mean().abs()])

    furthest = torch.stack([*map(drifts, samples)]).amax(0)
    drift = drifts(actual) > beyond / 2 * furthest + allowed.mean()
    wrong = errors(actual).abs() > allowed
    if 2 * int(wrong.sum()) < wrong.numel() and want[wrong].unique().numel() <= _FEW:  # equal elements move together
        drift = drift[:1]  # most elements are right, so these few show no direction
    return bool(drift.any())


def _moves_as_far(
    actual: torch.Tensor, expected: torch.Tensor, samples: Sequence[torch.Tensor], beyond: int
) -> torch.Tensor:
    """For each element, whether its error is explained by the largest error that the samples have in elements of a
    similar size.

    A few samples of the element itself show little. Samples of much larger elements would excuse any error: a mask is
    -1e9.
    """
    want = expected.to(torch.float64).flatten()
    moved = torch.stack([_errors(each, expected) for each in samples]).amax(0).flatten()
    reach = torch.maximum(want.abs(), moved).nan_to_num(nan=math.inf)
    found = reach[reach > 0]
    if not found.numel():
        return _same(actual, expected)
    sizes = (reach.clamp(min=float(found.min())).log2() / math.log2(_SIMILAR)).clamp(max=2048).floor().long()
    sizes = sizes - sizes.min() + 1
    furthest = torch.zeros(int(sizes.max()) + 2, dtype=torch.float64).scatter_reduce(0, sizes, moved, "amax")
    near = torch.stack([furthest[sizes + step] for step in (-1, 0, 1)]).amax(0)
    tiny = torch.finfo(expected.dtype).tiny
    return _errors(actual, expected) <= (beyond * near + tiny).view(expected.shape)


def _largest_error(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(_errors(one, other).max()) if one.numel() else 0.0


def _errors(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    got, want = one.to(torch.float64), other.to(torch.float64)
    return torch.where(_same(got, want), 0.0, (got - want).abs()).nan_to_num(nan=math.inf)


def _nothing(expected: Any) -> bool:
    """Whether an expected output has only NaN: it says nothing about the program."""
    if not isinstance(expected, torch.Tensor) or not expected.is_floating_point() or not expected.numel():
        return False
    return bool(expected.isnan().all())


def measure(actual: Sequence[Any], expected: Sequence[Any]) -> Measured:
    """Measures how far outputs are from others with the same shapes. The ratio is that of the worst output."""
    errors, ratios = [0.0], [math.inf]
    for one, other in zip(actual, expected, strict=True):
        if one is None or other is None:
            continue
        got, want = (torch.as_tensor(each).detach() for each in (one, other))
        errors.append(_largest_error(got, want))
        ratios.append(sqnr(got, want))
    return Measured(max(errors), min(ratios))


def worst_ratio(actual: Sequence[Any], expected: Sequence[Any]) -> float:
    """The ratio of signal to error of the worst output, in decibels. Outputs without a signal, such as zeros, have no
    ratio. Infinite if nothing differs."""
    ratios = [
        sqnr(*(torch.as_tensor(each).detach() for each in (one, other)))
        for one, other in zip(actual, expected, strict=True)
        if one is not None and other is not None
    ]
    return min((ratio for ratio in ratios if ratio > -math.inf), default=math.inf)


def sqnr(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """The ratio of signal to error, in decibels; infinite if nothing differs."""
    got, want = actual.to(torch.float64), expected.to(torch.float64)
    same = _same(got, want)
    noise = float(torch.where(same, 0.0, got - want).square().sum().nan_to_num(nan=math.inf))
    signal = float(_signal(torch.where(want.isfinite(), want.abs(), 0.0), same).square().sum())
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if 0 < signal < math.inf and noise < math.inf else -math.inf


def _same(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    return (actual == expected) | (actual.isnan() & expected.isnan())


_SENTINEL = 100
"""A right number that is so many times larger than all others is a sentinel: a mask is `finfo.min`, or -1e9."""
_LEAST_SENTINEL = 1000
"""Smaller numbers are no sentinels: a probability of 1 may stand beside others of 1e-18."""


def _signal(magnitudes: torch.Tensor, same: torch.Tensor) -> torch.Tensor:
    """The magnitudes with 0 in place of sentinels, which would hide the errors of all other elements."""
    while magnitudes.numel() and float(largest := magnitudes.max()) >= _LEAST_SENTINEL:
        others = magnitudes[magnitudes < largest]
        if not others.numel() or not 0 < others.max() * _SENTINEL < largest:
            break
        are_largest = magnitudes == largest
        if not bool(same[are_largest].all()):
            break
        magnitudes = torch.where(are_largest, 0.0, magnitudes)
    return magnitudes


def _difference(actual: Any, expected: Any, tolerance: Tolerance | None, quantized: bool) -> str | None:
    if actual is None or expected is None:
        return None if actual is expected else f"{_kind(actual)} instead of {_kind(expected)}"
    if not isinstance(actual, torch.Tensor) and not isinstance(expected, torch.Tensor):
        actual, expected = torch.as_tensor(actual), torch.as_tensor(expected)
    if not isinstance(actual, torch.Tensor) or not isinstance(expected, torch.Tensor):
        return f"{_kind(actual)} instead of {_kind(expected)}"
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return f"{_kind(actual)} instead of {_kind(expected)}"
    allowed = tolerance if tolerance is not None else default_tolerance(expected, quantized)
    return _elements(actual.detach(), expected.detach(), allowed)


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{dtype_name(value.dtype)} {list(value.shape)}"
    return "None" if value is None else type(value).__name__


def _elements(actual: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance) -> str | None:
    """The worst elements, or the first ones of a dtype without a tolerance; None if all are near enough."""
    if expected.is_floating_point():
        right, allowed = _right(actual, expected, tolerance)
        # How far the error exceeds the allowed one, so that small elements count as much as large ones. NaN is the
        # worst.
        beyond = torch.where(right, -1.0, (_errors(actual, expected) - allowed).nan_to_num(posinf=math.inf)).flatten()
    else:  # compared exactly: float64 cannot hold all integers, nor complex numbers
        right, allowed, beyond = actual == expected, None, None
    wrong = (~right).flatten().nonzero().flatten()
    count = len(wrong)
    if not count:
        return None
    elements = wrong[:_WORST] if beyond is None else beyond.topk(min(_WORST, count)).indices
    lines = [f"{count} of {right.numel()} elements are wrong; the {'first' if beyond is None else 'worst'}:"]
    for element in elements.tolist():
        at = [int(index) for index in torch.unravel_index(torch.tensor(element), right.shape)]
        got, want = actual.flatten()[element], expected.flatten()[element]
        limit = "" if allowed is None else f" (allowed: {float(allowed.flatten()[element]):.3g})"
        lines.append(f"  {at}: {_apart(got, want)}{limit}")
    if beyond is not None:
        lines.append(f"  {Measured(_largest_error(actual, expected), sqnr(actual, expected))}")
    return "\n".join(lines)


def _right(actual: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance) -> tuple[torch.Tensor, torch.Tensor]:
    """Which elements are near enough, and how far each may be from the expected one."""
    want = expected.to(torch.float64)
    finite = torch.where(want.isfinite(), want.abs(), 0.0)
    largest = float(_signal(finite, _same(actual, expected)).max()) if finite.numel() else 0.0
    allowed = tolerance.atol + tolerance.rtol * finite + tolerance.of_largest * largest + _next_to_zero(expected.dtype)
    return _same(actual, expected) | ((_errors(actual, expected) <= allowed) & want.isfinite()), allowed


_FROM_SUBNORMAL, _MEANT_BY_NOBODY = 1024, 1e-30


def _next_to_zero(dtype: torch.dtype) -> float:
    """The size below which a number may become zero. Subnormal numbers may. If no user means numbers that small,
    products of them may too."""
    tiny = float(torch.finfo(dtype).tiny)
    return tiny * _FROM_SUBNORMAL if tiny < _MEANT_BY_NOBODY else tiny


def _apart(actual: torch.Tensor, expected: torch.Tensor) -> str:
    """Two different numbers, with as many digits as show that they differ."""
    one, other = actual.item(), expected.item()
    if not isinstance(one, float):
        return f"{one} instead of {other}"
    texts = [(f"{one:.{digits}g}", f"{other:.{digits}g}") for digits in _DIGITS]
    return " instead of ".join(next((pair for pair in texts if len({*pair}) > 1), texts[-1]))
