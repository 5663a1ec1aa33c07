"""Inputs of a method from the command line: JSON, or files with tensors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from etbuild.errors import InputError, counted
from etbuild.model.tensor_files import read_tensors

if TYPE_CHECKING:
    from etbuild.results import ProgramMethod, Value

_SUFFIXES = (".npy", ".pt", ".pth", ".bin")


def inputs(method: str, facts: ProgramMethod, given: Sequence[Any]) -> list[Any]:
    """The inputs of a method.

    Args:
        method: The method's name, for errors.
        facts: The facts of the method.
        given: The first inputs: JSON such as `[[1, 2]]`, `FILE.npy`, `FILE.pt`, or `FILE.safetensors:KEY`. What is no
            text stays as it is. The others are 0, 1, 2, ... in the largest sizes that the method takes.

    Raises:
        InputError: There are too many, or one cannot be read.
    """
    wanted = facts["inputs"]
    if len(given) > len(wanted):
        raise InputError.of(f"`{method}` takes {counted(len(wanted), 'input')}, not {len(given)}")
    pairs = zip(given, wanted, strict=False)
    read = [read_one(each, fact) if isinstance(each, str) else each for each, fact in pairs]
    return read + [_counted(fact) for fact in wanted[len(given) :]]


def _counted(fact: Value) -> Any:
    if "dtype" not in fact:
        return fact["value"]
    count = torch.Size(fact["shape"]).numel()
    return torch.arange(count).reshape(fact["shape"]).to(getattr(torch, fact["dtype"]))


def read_one(text: str, fact: Value) -> Any:
    """One input.

    Args:
        text: JSON such as `[[1, 2]]`, `FILE.npy`, `FILE.pt`, or `FILE.safetensors:KEY`.
        fact: The input as the program describes it.

    Raises:
        InputError: It cannot be read.
    """
    name, _, key = text.rpartition(":") if ".safetensors:" in text else (text, "", "")
    if name.endswith((".safetensors", *_SUFFIXES)):
        return _of_file(Path(name), key)
    try:
        value = json.loads(text)
        return torch.tensor(value, dtype=getattr(torch, fact["dtype"])) if "dtype" in fact else value
    except (ValueError, TypeError, RuntimeError, RecursionError, OverflowError) as error:
        hint = "write JSON such as '[[1, 2]]', FILE.npy, FILE.pt or FILE.safetensors:KEY"
        raise InputError.of(f"{text}: not an input: {error}", hint) from None


def _of_file(path: Path, key: str) -> torch.Tensor:
    if not path.is_file():
        raise InputError.of(f"{path}: there is no such file")
    found = read_tensors(path.name, path, ())
    if not key and len(found) == 1:
        return next(iter(found.values()))
    if key not in found:
        raise InputError.of(f"{path}: choose a tensor: {', '.join(f'{path}:{name}' for name in sorted(found))}")
    return found[key]
