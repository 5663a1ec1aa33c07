"""Calls the functions of constant methods during the export, so that lowering needs only their values."""

from __future__ import annotations

import math
from typing import Any

import torch

from etbuild.errors import BuildError, DocumentPath
from etbuild.files.value_limits import INT64
from etbuild.inputs.user_code import load_callable, wrap_user_error
from etbuild.model.tensor_bytes import dtype_name, row_major
from etbuild.plan.step_plans import ExportPlan


def compute(export_plan: ExportPlan) -> dict[str, object]:
    """Calls the factory of each constant method from code.

    Args:
        export_plan: The export plan.

    Returns:
        The values by name: numbers, booleans, strings, lists of numbers and booleans, and tensors.

    Raises:
        BuildError: A callable failed, or returned a value of another kind.
    """
    values: dict[str, object] = {}
    for name, entry in sorted(export_plan.constant_methods.items()):
        path = ("constant_methods", name, "factory")
        factory = load_callable(entry.factory, path)
        with wrap_user_error(path, f"`{entry.factory}`"):
            value = factory(**entry.kwargs)
        if isinstance(value, torch.Tensor):
            _check_tensor(value, entry.factory, path)
            value = row_major(value.detach())
        elif isinstance(value, str):
            _check_text(value, entry.factory, path)
        else:
            _check(value, entry.factory, path)
        values[name] = list(value) if isinstance(value, tuple) else value
    return values


DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e5m2, torch.float8_e4m3fn),
)
"""The dtypes of constant tensors. Programs can also hold complex and quantized tensors, but no kernel takes those."""


def _check_tensor(value: torch.Tensor, reference: str, path: DocumentPath) -> None:
    if value.dtype not in DTYPES:
        dtype, accepted = dtype_name(value.dtype), ", ".join(map(dtype_name, DTYPES))
        message = f"`{reference}` returned a tensor of {dtype}, which a program cannot hold"
        raise BuildError.at(path, message, f"known: {accepted}")
    if value.is_meta or value.layout != torch.strided:
        raise BuildError.at(path, f"`{reference}` returned a tensor that a program cannot hold")


def _check_text(value: str, reference: str, path: DocumentPath) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        message = f"`{reference}` returned a string that is not valid Unicode: {error.reason} at {error.start}"
        raise BuildError.at(path, message) from None


def _check(value: Any, reference: str, path: DocumentPath) -> None:
    if isinstance(value, (list, tuple)) and not value:
        hint = "return at least one number"
        raise BuildError.at(path, f"`{reference}` returned an empty {type(value).__name__}", hint)
    for number in value if isinstance(value, (list, tuple)) else [value]:
        if type(number) not in (bool, int, float):
            hint = "a constant is a number, a boolean, a string, a list of numbers and booleans, or a tensor"
            message = f"`{reference}` returned {type(value).__name__}" + (
                f" with {type(number).__name__}" if number is not value else ""
            )
            raise BuildError.at(path, message, hint)
        if isinstance(number, int) and not INT64[0] <= number <= INT64[1]:
            raise BuildError.at(path, f"`{reference}` returned {number}, which does not fit into 64 bits")
        if not math.isfinite(number):
            raise BuildError.at(path, f"`{reference}` returned {number}, which is not finite")
