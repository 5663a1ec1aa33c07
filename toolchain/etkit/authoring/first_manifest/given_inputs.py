"""Inputs of a method as the command line has them: `1,3,64,64`, or `ids=int64[1,16]`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from etbuild import json_schema
from etbuild.errors import InputError, did_you_mean
from etbuild.plan.kinds import Dtype

if TYPE_CHECKING:
    import torch

DTYPES: tuple[str, ...] = get_args(Dtype)
_FORM = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<dtype>[A-Za-z]\w*)?(?P<open>\[)?(?P<sizes>[\d,\s]*)(?(open)\])")
_EXAMPLES = "for example --input 1,3,64,64 or --input ids=int64[1,16]"


@dataclass(frozen=True)
class GivenInput:
    """A tensor that a method is exported with.

    Attributes:
        text: What the user wrote.
        name: The method's parameter; None for the next positional one.
        shape: Its sizes.
        dtype: Its type, by PyTorch's name.
    """

    text: str
    name: str | None
    shape: tuple[int, ...]
    dtype: str = "float32"

    @classmethod
    def parse(cls, text: str) -> GivenInput:
        """Reads an input.

        Raises:
            InputError: The text has another form, or names a type that programs do not take.
        """
        found = _FORM.fullmatch(text.strip())
        dtype = (found and found["dtype"]) or "float32"
        in_words = dtype not in DTYPES and found is not None and not found["open"]  # `N,8` begins with no type
        if found is None or in_words or not (found["open"] or found["sizes"]):
            raise InputError.of(f"--input {text}: expected sizes, and before them a name and a type", _EXAMPLES)
        if dtype not in DTYPES:
            ours = json_schema.DTYPES.get(dtype)
            hint = f"PyTorch's `{dtype}` is `{ours}`" if ours else did_you_mean(dtype, DTYPES)
            raise InputError.of(f"--input {text}: unknown type `{dtype}`", hint)
        if found["dtype"] and not found["open"]:
            raise InputError.of(f"--input {text}: the sizes need brackets", _EXAMPLES)
        sizes = [size.strip() for size in found["sizes"].split(",")] if found["sizes"].strip() else []
        if not all(size.isdigit() and int(size) > 0 for size in sizes):
            raise InputError.of(f"--input {text}: each size is a number from 1 on", _EXAMPLES)
        return cls(text, found["name"], tuple(map(int, sizes)), dtype)

    @property
    def example(self) -> str:
        """The input in a manifest."""
        dtype = "" if self.dtype == "float32" else f", dtype: {self.dtype}"
        return f"{{shape: {list(self.shape)}{dtype}}}"


def of_given(root: torch.nn.Module, given: Sequence[GivenInput]) -> list[str]:
    """The lines of `methods` for a module whose `forward` takes these inputs.

    Raises:
        InputError: It has other parameters.
    """
    positional = [each for each in given if each.name is None]
    named = {each.name: each for each in given if each.name is not None}
    written = f"--input {' --input '.join(each.text for each in given)}"
    if len(positional) + len(named) < len(given):
        raise InputError.of(f"{written}: two inputs have the same name")
    signature = inspect.signature(root.forward)
    if unknown := [name for name in named if not _takes(signature, name)]:
        hint = did_you_mean(unknown[0], list(signature.parameters))
        raise InputError.of(f"{written}: `forward` has no parameter `{unknown[0]}`", hint)
    try:
        bound = signature.bind(*positional, **named)
    except TypeError as error:
        raise InputError.of(f"{written}: `forward{signature}` does not take these: {error}") from None
    lines = ["forward:", f"  example_inputs: [{', '.join(each.example for each in bound.args)}]"]
    if bound.kwargs:
        named_lines = ", ".join(f"{name}: {each.example}" for name, each in bound.kwargs.items())
        lines += [f"  example_kwargs: {{{named_lines}}}"]
    return lines


def _takes(signature: inspect.Signature, name: str) -> bool:
    kinds = {each.kind for each in signature.parameters.values()}
    return name in signature.parameters or inspect.Parameter.VAR_KEYWORD in kinds
