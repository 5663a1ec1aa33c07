"""Inputs of a method that other methods of the program compute, such as `image_encoder(photo.npy)`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from etbuild.errors import InputError, counted
from etbuild.exception_text import summary
from etkit import arguments

if TYPE_CHECKING:
    from etplugins.runtime.program_files import ProgramFiles

_CALL = re.compile(r"([A-Za-z_]\w*)\((.*)\)(?:\[(\d+)\])?", re.DOTALL)
_OPEN, _CLOSE = "([{", ")]}"


@dataclass(frozen=True)
class Call:
    """A call of a method. Its inputs are values, or `Output` and `Joined` of other calls."""

    method: str
    inputs: list[Any]


@dataclass(frozen=True)
class Output:
    """One output of a call."""

    call: Call
    number: int


@dataclass(frozen=True)
class Joined:
    """Outputs of calls, one after the other in their first dimension."""

    outputs: list[Output]


@dataclass(frozen=True)
class Called:
    """What a call got, and what it returned."""

    inputs: list[Any]
    outputs: list[Any]


def expanded(files: ProgramFiles, given: Sequence[str]) -> list[Any]:
    """Puts the outputs of calls in the place of their texts.

    Args:
        files: The program.
        given: Inputs. `METHOD(INPUT, ...)` is a call, with all outputs of the method, `METHOD(INPUT, ...)[N]` with the
            output N. `[METHOD(...), METHOD(...)]` joins outputs in their first dimension. The others stay.

    Raises:
        InputError: There is no such method or output, or an input of a call cannot be read.
    """
    found: list[Any] = []
    for text in given:
        parts = _parts(text[1:-1]) if text.startswith("[") and text.endswith("]") else []
        if parts and all(map(_CALL.fullmatch, parts)):
            found.append(Joined([each for part in parts for each in _outputs(files, part)]))
        else:
            found += _outputs(files, text)
    return found


def _outputs(files: ProgramFiles, text: str) -> list[Any]:
    parsed = _CALL.fullmatch(text.strip())
    if parsed is None:
        return [text]
    method, inputs, chosen = parsed.groups()
    facts = files.method(method)
    call = Call(method, arguments.inputs(method, facts, expanded(files, _parts(inputs))))
    outputs = [Output(call, number) for number in range(len(facts["outputs"]))]
    if chosen is None:
        return list(outputs)
    if int(chosen) >= len(outputs):
        raise InputError.of(f"{text}: `{method}` has {counted(len(outputs), 'output')}, counted from 0")
    return [outputs[int(chosen)]]


def _parts(text: str) -> list[str]:
    """The parts between commas that no bracket holds."""
    depth, found = 0, [""]
    for character in text:
        depth += (character in _OPEN) - (character in _CLOSE)
        if character == "," and depth == 0:
            found.append("")
        else:
            found[-1] += character
    return [each.strip() for each in found if each.strip()]


def called(method: str, inputs: list[Any], call: Callable[[str, list[Any]], list[Any]]) -> list[Called]:
    """Calls a method, and before it those whose outputs are its inputs, each call once.

    Args:
        method: The method.
        inputs: Its inputs: values, `Output` and `Joined`.
        call: Calls a method with values.

    Returns:
        All calls, that of the method last.

    Raises:
        InputError: Outputs cannot be joined.
    """
    done: dict[int, Called] = {}

    def made(one: Call) -> Called:
        if id(one) not in done:
            values = [_value(each, made) for each in one.inputs]
            done[id(one)] = Called(values, call(one.method, values))
        return done[id(one)]

    made(Call(method, inputs))
    return [*done.values()]


def _value(given: Any, made: Callable[[Call], Called]) -> Any:
    if isinstance(given, Output):
        return made(given.call).outputs[given.number]
    if not isinstance(given, Joined):
        return given
    values = [_value(each, made) for each in given.outputs]
    try:
        return torch.cat(values)
    except (RuntimeError, TypeError) as error:
        names = ", ".join(f"`{each.call.method}`" for each in given.outputs)
        raise InputError.of(f"the outputs of {names} cannot be joined: {summary(error)}") from error
