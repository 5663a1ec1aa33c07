"""Constant methods from code: evaluated by the export, so that lowering needs their values alone."""

from __future__ import annotations

import math
from typing import Any

import torch

from etbuild.errors import BuildError, DocumentPath, Problem
from etbuild.examples import INT64
from etbuild.module import row_major
from etbuild.plan import Plan
from etbuild.sources import SourceFinder, blame, load_callable


def compute(export_plan: Plan, finder: SourceFinder) -> dict[str, Any]:
    """What each constant method from code returns, by name: a number, a boolean, a string, a list of numbers, a tensor.

    Raises:
        BuildError: A callable failed, or returned something else.
    """
    found = {}
    for name, entry in sorted(export_plan["constant_methods"].items()):
        path = ("constant_methods", name, "factory")
        factory = load_callable(entry["factory"], finder, path)
        with blame(path, f"`{entry['factory']}`", finder):
            value = factory(**entry["kwargs"])
        if isinstance(value, torch.Tensor):
            _check_tensor(value, entry["factory"], path)
            value = row_major(value.detach())
        elif not isinstance(value, str):
            _check(value, entry["factory"], path)
        found[name] = list(value) if isinstance(value, tuple) else value
    return found


def _check_tensor(value: torch.Tensor, reference: str, path: DocumentPath) -> None:
    if value.is_complex() or value.is_quantized or value.is_meta or value.layout != torch.strided:
        raise BuildError([Problem(f"`{reference}` returned a tensor that no program can hold", path)])


def _check(value: Any, reference: str, path: DocumentPath) -> None:
    numbers = value if isinstance(value, (list, tuple)) and value else [value]
    for number in numbers:
        if type(number) not in (bool, int, float):
            hint = "a constant is a number, a boolean, a string, a list of numbers, or a tensor"
            message = f"`{reference}` returned {type(value).__name__}" + (
                f" with {type(number).__name__}" if number is not value else ""
            )
            raise BuildError([Problem(message, path, hint)])
        if isinstance(number, int) and not INT64[0] <= number <= INT64[1]:
            raise BuildError([Problem(f"`{reference}` returned {number}, which does not fit into 64 bits", path)])
        if not math.isfinite(number):
            raise BuildError([Problem(f"`{reference}` returned {number}, which no artifact can hold", path)])


def described(value: Any) -> Any:
    """A constant as JSON data: of a tensor its form."""
    if not isinstance(value, torch.Tensor):
        return value
    return {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
