"""Chooses the calls with which a program is compared: their sizes, and the values of their inputs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.export import ExportedProgram

from etbuild.comparison import random_values
from etbuild.comparison.random_values import Limits
from etbuild.export.saved_examples import inputs_of_graph

UNLIMITED = 1 << 31
"""A size without a limit: PyTorch writes an infinity, or the largest number of 64 bits."""
_LARGEST = 4  # times the size of the example: the largest size of a dimension without a limit
_HALVINGS = 8  # of the way from the smallest to the largest size, until a call is small enough


@dataclass(frozen=True)
class _Size:
    """A symbol of dynamic sizes: its limits, and its value for the example inputs."""

    least: int
    most: int
    example: int


@dataclass(frozen=True)
class ComparedCall:
    """A call of a method.

    Attributes:
        name: What it is, for messages.
        inputs: Its inputs. If PyTorch refuses them, the next ones are taken.
    """

    name: str
    inputs: Sequence[list[Any]]


class Calls:
    """The calls of one method.

    Args:
        program: The exported method.
        examples: Its example inputs, in its order.
        ranges: The smallest and the largest random number of the first inputs; None for the default.
    """

    def __init__(self, program: ExportedProgram, examples: Sequence[Any], ranges: Sequence[Limits | None]) -> None:
        self._shapes, self._examples = _shapes(program), examples
        self._ranges = [*ranges, *([None] * (len(examples) - len(ranges)))]
        self._sizes = dict(sorted(_sizes(program, self._shapes, examples).items(), key=lambda item: str(item[0])))

    def chosen(self, budget: int, work: int) -> Iterator[ComparedCall]:
        """The calls after the first one, which has the example inputs.

        The second call repeats the first one. The others have random values; of a method with dynamic sizes they
        shrink, grow, and shrink again, since memory that was planned for one size is used for another. If one call is
        more than the budget, there is another one only if the example inputs show little: each is a single number.

        Args:
            budget: How many numbers the operators may read and write.
            work: How many they have read and written in the first call.
        """
        if work > budget:
            if all(map(_is_one_number, self._examples)):
                yield self._random("", {symbol: size.example for symbol, size in self._sizes.items()})
            return
        yield ComparedCall("the second call with the example inputs", [[*self._examples]])
        budget -= work
        shares = {"smallest": 0.0, "largest": 1.0, "smallest again": 0.0, "in between": 0.5} if self._sizes else {"": 0}
        for label, share in shares.items():
            for halving in range(_HALVINGS if share else 1):
                sizes = {
                    symbol: size.least + int((size.most - size.least) * share / 2**halving)
                    for symbol, size in self._sizes.items()
                }
                estimate = self._work(sizes, work)
                if estimate <= budget:
                    budget -= estimate
                    yield self._random(label, sizes)
                    break

    def _work(self, sizes: Mapping[Any, int], work: int) -> int:
        """The work of a call with other sizes, if it grows with each of them."""
        factor = 1.0
        for symbol, size in sizes.items():
            factor *= size / max(self._sizes[symbol].example, 1)
        return int(work * factor)

    def _random(self, label: str, sizes: Mapping[Any, int]) -> ComparedCall:
        inputs = [self._inputs(label, sizes, neighbours) for neighbours in (True, False)]
        shapes = ", ".join(str([*each.shape]) for each in inputs[0] if isinstance(each, torch.Tensor))
        return ComparedCall(f"a call with random inputs of the shapes {shapes}", inputs)

    def _inputs(self, label: str, sizes: Mapping[Any, int], neighbours: bool) -> list[Any]:
        seed = int.from_bytes(hashlib.sha256(label.encode()).digest()[:7], "big")
        generator = torch.Generator().manual_seed(seed)
        made = []
        for example, shape, limits in zip(self._examples, self._shapes, self._ranges, strict=True):
            if isinstance(example, torch.Tensor):
                concrete = [size if isinstance(size, int) else int(size.subs(sizes)) for size in shape]
                if limits is None and example.dtype in (torch.uint8, torch.int8):  # data, not indices
                    limits = torch.iinfo(example.dtype).min, torch.iinfo(example.dtype).max
                made.append(random_values.like(example, concrete, limits, generator, neighbours))
            else:
                made.append(example)
        return made


def _is_one_number(example: Any) -> bool:
    """Whether an input has the same number everywhere."""
    return not isinstance(example, torch.Tensor) or bool((example == example.flatten()[:1]).all())


def _shapes(program: ExportedProgram) -> list[list[Any]]:
    """The shape of each input. A dynamic size is an expression of symbols. A plain value has no shape."""
    return [
        [size if isinstance(size, int) else size.node.expr for size in value.shape]
        if isinstance(value, torch.Tensor)
        else []
        for value in inputs_of_graph(program)
    ]


def _sizes(program: ExportedProgram, shapes: Sequence[Sequence[Any]], examples: Sequence[Any]) -> dict[Any, _Size]:
    """The symbols in the sizes of inputs. A size may be derived from a symbol, such as `8*s0 + 1`."""
    found: dict[Any, _Size] = {}
    for shape, example in zip(shapes, examples, strict=True):
        for expression, size in zip(shape, example.shape if shape else (), strict=True):
            if isinstance(expression, int) or len(expression.free_symbols) != 1:
                continue
            (symbol,) = expression.free_symbols
            plus = int(expression.subs({symbol: 0}))
            times = int(expression.subs({symbol: 1})) - plus
            own = (size - plus) // times
            known = found.get(symbol, _Size(1, UNLIMITED, own))
            for limited in (symbol, expression):
                limits = program.range_constraints.get(limited)
                if limits is not None:
                    by, beyond = (1, 0) if limited == symbol else (times, plus)
                    least = -(-(max(int(limits.lower), 1) - beyond) // by)
                    most = (int(limits.upper) - beyond) // by if bool(limits.upper < UNLIMITED) else UNLIMITED
                    known = _Size(max(known.least, least), min(known.most, most), own)
            found[symbol] = known
    unlimited = {symbol for symbol, size in found.items() if size.most == UNLIMITED}
    return {
        symbol: replace(size, most=max(_LARGEST * size.example, size.least)) if symbol in unlimited else size
        for symbol, size in found.items()
    }
