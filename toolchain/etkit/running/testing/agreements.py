"""Measures how near two lists of outputs are, in the unit of a task."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn.functional import avg_pool2d, cosine_similarity

from etbuild.errors import DocumentPath, InputError, counted
from etbuild.inputs.user_code import load_callable, wrap_user_error
from etplugins.comparison import accuracy, quantized
from etplugins.model_tests.parts import ALL_OUTPUTS, LIMITS, Agreement

Measure = Callable[[Sequence[Any], Sequence[Any]], float]
"""Gets the outputs of the model and those of the program."""
_FIRST = 5  # classes among which `top5` looks for that of the model
_WINDOW = 7  # pixels in each direction that `ssim` compares
_NEAR = 1.25  # times a depth
_BEST = 100.0  # decibels of numbers without any difference
_MATRIX = 2  # dimensions of a picture


def measure_of(agreement: Agreement) -> Measure:
    """The function that measures one call.

    Raises:
        InputError: The sources have no such callable.
    """
    path = (*agreement.path, "measure")
    if agreement.output == ALL_OUTPUTS:
        return partial(_of_all, agreement.path)
    if ":" not in agreement.measure:
        return partial(_of_output, agreement)
    function = load_callable(agreement.measure, path)

    def measured(expected: Sequence[Any], actual: Sequence[Any]) -> float:
        with wrap_user_error(path, f"`{agreement.measure}`"):
            return float(function(expected, actual, **agreement.kwargs))

    return measured


def judged(
    agreement: Agreement, names: Sequence[str], values: Sequence[float]
) -> tuple[str, list[str], dict[str, float]]:
    """What was measured, for people; the limits that it breaks; and the mean and the worst."""
    falls = agreement.max_mean is not None or agreement.max_worst is not None  # less is better
    order = [math.inf * (1 if falls else -1) if math.isnan(value) else value for value in values]
    worst = (max if falls else min)(range(len(values)), key=order.__getitem__)
    measured = {"mean": sum(values) / len(values), "worst": values[worst]}
    limited = {"mean": measured["mean"], "min_worst": min(order), "max_worst": max(order)}
    problems = []
    for name in LIMITS:
        limit, value = getattr(agreement, name), limited.get(name, limited["mean"])
        if limit is not None and not (value >= limit if name.startswith("min") else value <= limit):
            problems.append(f"`{name}` is {limit:g}")
    count = counted(len(values), "sample")
    detail = f"mean {measured['mean']:.4g}, worst {measured['worst']:.4g} (`{names[worst]}`), {count}"
    return detail, problems, measured


def _of_all(path: DocumentPath, expected: Sequence[Any], actual: Sequence[Any]) -> float:
    """The ratio of signal to error in the worst output. Outputs that are no floating-point numbers must be equal."""
    shapes = [[getattr(each, "shape", None) for each in outputs] for outputs in (expected, actual)]
    if shapes[0] != shapes[1]:
        raise InputError.at(path, "the program has other outputs than the model, or outputs of other shapes")
    found = quantized.loss(expected, actual)
    if found is None:
        pairs = zip(expected, actual, strict=True)
        equal = all(
            torch.equal(want, got) if isinstance(want, torch.Tensor) else bool(want == got) for want, got in pairs
        )
        return _BEST if equal else 0.0
    return min(_BEST, found)


def _of_output(agreement: Agreement, expected: Sequence[Any], actual: Sequence[Any]) -> float:
    index = agreement.output
    if index >= len(expected):
        message = f"there is no output {index}: the method has {len(expected)}, from 0"
        raise InputError.at((*agreement.path, "output"), message)
    want, got = (outputs[index] for outputs in (expected, actual))
    if not isinstance(want, torch.Tensor) or not isinstance(got, torch.Tensor) or want.shape != got.shape:
        raise InputError.at((*agreement.path, "output"), f"output {index} is no tensor, or has another shape")
    if want.dim() < {"argmax": _MATRIX, "ssim": _MATRIX, "top1": 1, "top5": 1, "distance": 1}.get(agreement.measure, 0):
        message = f"output {index} has the shape {[*want.shape]}, which `{agreement.measure}` cannot measure"
        raise InputError.at((*agreement.path, "output"), message)
    return float(_MEASURES[agreement.measure](want.detach().to(torch.float64), got.detach().to(torch.float64)))


def _cosine(want: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    return cosine_similarity(want.flatten(), got.flatten(), dim=0)


def _sqnr(want: torch.Tensor, got: torch.Tensor) -> float:
    return min(_BEST, accuracy.sqnr(got, want))


def _psnr(want: torch.Tensor, got: torch.Tensor) -> float:
    span = _span(want)
    error = float((((want - got) / span) ** 2).mean())
    if not math.isfinite(error) or not math.isfinite(span):
        return -math.inf
    exact = error == 0  # as good as can be, but it does not hide other samples in a mean
    return _BEST if exact else min(_BEST, -10 * math.log10(error))


def _span(want: torch.Tensor) -> torch.Tensor:
    """The difference between the largest and the smallest number; 1 if there is none."""
    span = want.max() - want.min()
    return span if span > 0 else torch.ones_like(span)


def _ssim(want: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    """The structural similarity of pictures, in windows of equal weight."""
    size = min(_WINDOW, *want.shape[-2:])
    pictures = [each.reshape(-1, 1, *each.shape[-2:]) for each in (want, got, want**2, got**2, want * got)]
    one, other, one_2, other_2, both = (avg_pool2d(each, size, 1) for each in pictures)
    first, second = (0.01 * _span(want)) ** 2, (0.03 * _span(want)) ** 2
    likeness = (2 * one * other + first) * (2 * (both - one * other) + second)
    return (likeness / ((one**2 + other**2 + first) * (one_2 - one**2 + other_2 - other**2 + second))).mean()


def _top(count: int, want: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    first = got.topk(min(count, got.shape[-1]), dim=-1).indices
    found = (first == want.argmax(-1, keepdim=True)).any(-1)
    return (found & ~got.isnan().any(-1)).to(torch.float64).mean()  # NaN counts as the largest number, so as the first


def _argmax(want: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    return ((want.argmax(1) == got.argmax(1)) & ~got.isnan().any(1)).to(torch.float64).mean()


def _iou(want: torch.Tensor, got: torch.Tensor) -> float:
    one, other = want > 0, got > 0
    either = int((one | other | got.isnan()).sum())  # NaN is neither inside nor outside
    return int((one & other).sum()) / either if either else 1.0


def _error(want: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    return (want - got).abs().mean()


def _distance(want: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    return (want - got).norm(dim=-1).mean()


def _depth(want: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    return (torch.maximum(want / got, got / want) < _NEAR).to(torch.float64).mean()


_MEASURES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "cosine": _cosine,
    "sqnr": _sqnr,
    "psnr": _psnr,
    "ssim": _ssim,
    "top1": partial(_top, 1),
    "top5": partial(_top, _FIRST),
    "argmax": _argmax,
    "iou": _iou,
    "error": _error,
    "distance": _distance,
    "depth": _depth,
}
