"""Chooses the calls with which a program is compared: their sizes, and the values of their inputs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, cycle, islice
from typing import Any

import torch
from torch.export import ExportedProgram

from etbuild.export.example_values import inputs_of_graph
from etplugins.comparison import hints, values
from etplugins.comparison.coverage import Coverage
from etplugins.comparison.random_values import Limits
from etplugins.comparison.values import Input, Kind

UNLIMITED = 1 << 31
"""From this size on, a dimension has no limit: PyTorch writes an infinity, or the largest number of 64 bits."""
_LARGEST = 4  # the largest size of a dimension without a limit, as a multiple of the example's
_HALVINGS = 8  # how often the way from the smallest size is halved, until a call is small enough
_OPERATOR = 20_000  # calling an operator takes as long as reading and writing so many numbers
_ONE_MORE = 4  # a call that takes less than so many times the budget is made once more, with other values
_MANY = 20  # sizes are small if the budget suffices for so many calls
_COUNTED = 16  # the least number of calls that fill a state: a counter may stop
_LONGEST = 64  # the largest number of calls that fill a state
_FEW = 3  # so many inputs get large numbers while the others have usual ones
_FLOAT, _INTEGER, _BOOLEAN = range(3)
_MOST_SIZES = 64  # the largest number of sizes of a dimension that are tried
_SCALES = (10.0, 1000.0)  # factors of inputs, to reach what no call has shown yet


@dataclass(frozen=True)
class _Size:
    """A symbol of dynamic sizes: its limits, and its value for the example inputs."""

    least: int
    most: int
    example: int
    may_be_zero: bool = False


@dataclass(frozen=True)
class ComparedCall:
    """A call of a method.

    Attributes:
        name: What it is, for messages.
        inputs: Alternatives for its inputs: if PyTorch refuses the first ones, the next ones are taken.
        is_extreme: Whether the method may overflow. If it does, there is nothing to compare.
    """

    name: str
    inputs: Iterable[list[Any]]
    is_extreme: bool = False


class Calls:
    """The calls of one method.

    Args:
        program: The exported method.
        examples: Its example inputs, in its order.
        ranges: The smallest and the largest random number of the first inputs; None for the default.
        coverage: What the calls have shown so far.
        slow: How many more numbers the runtime's own kernels read in a call with the sizes of the example inputs.
    """

    def __init__(
        self,
        program: ExportedProgram,
        examples: Sequence[Any],
        ranges: Sequence[Limits | None],
        coverage: Coverage,
        slow: int = 0,
    ) -> None:
        self._shapes, self._examples, self._coverage = _shapes(program), examples, coverage
        self._inputs = dict(_inputs(program, examples, [*ranges, *([None] * (len(examples) - len(ranges)))]))
        self._sizes = dict(sorted(_sizes(program, self._shapes, examples).items(), key=lambda item: str(item[0])))
        self._operators: int = sum(node.op == "call_function" for node in program.graph.nodes)
        self._has_states = bool(hints.states(program))
        self._number, self._is_taken = 0, False
        self._budget = self._whole = self._work = 0
        self._slow = slow

    def chosen(self, budget: int, work: int) -> Iterator[ComparedCall]:
        """Yields the calls after the first one, which has the example inputs. The caller makes each before it asks for
        the next one.

        The second call repeats the first one. Then sizes shrink, grow, and shrink again, since memory that was planned
        for one size is used for another. Then each kind of values is tried, and again with other small sizes. If one
        call exceeds the budget, smaller sizes are taken. A method without other sizes is called once more with other
        values, if the call does not exceed the budget by much, or if each example input has only one number.

        Args:
            budget: How many numbers the operators may read and write.
            work: How many they have read and written in the first call.
        """
        work += self._slow
        self._budget, self._whole, self._work = budget, budget, work
        own = {symbol: size.example for symbol, size in self._sizes.items()}
        if self._spend(own):
            yield ComparedCall("the second call with the example inputs", [[*self._examples]])
        elif not self._sizes:
            if work <= _ONE_MORE * budget or all(map(_is_one_number, self._examples)):
                yield self._made(own, Kind())
            return
        usual = Kind(integers=values.WALK if self._has_states else values.DIFFERENT)
        is_wide = any(each.integers and each.integers.wide for each in self._inputs.values())
        if is_wide and not self._has_states and self._spend(own):  # a state would keep counts
            yield self._made(own, Kind(integers=values.WIDE))
        for share in self._shares() if self._sizes else ():
            if (sizes := self._affordable(share)) is not None:
                yield self._made(sizes, usual)
        if any(size.may_be_zero for size in self._sizes.values()):
            yield self._made(
                {symbol: size.example * (not size.may_be_zero) for symbol, size in self._sizes.items()}, usual
            )
        small = own if self._is_small(own) else self._at(dict.fromkeys(self._sizes, 0.0))
        yield from self._filling(small)
        kinds = [*self._kinds()]
        count = max([0, *map(self._sizes_of, self._sizes)])
        others = map(self._other_small, range(max(count, len(kinds)) if count else 0))
        for kind, sizes in zip(cycle(kinds), chain([small] * len(kinds), others), strict=False):
            if not self._spend(sizes):
                return
            yield self._made(sizes, kind)
        for scale in _SCALES if self._has(_FLOAT) else ():
            if self._coverage.unseen() and self._spend(small):
                yield self._made(small, Kind(scale=scale, integers=usual.integers))

    def _filling(self, sizes: Mapping[Any, int]) -> Iterator[ComparedCall]:
        """Yields calls that fill the states of a method. They come before calls with large numbers, which would hide
        what states hold."""
        half = self._budget // 2
        for number in range(_LONGEST if self._has_states else 0):
            if number >= _COUNTED and not self._coverage.fills:
                return
            if self._budget < half or not self._spend(sizes):
                return
            yield self._made(sizes, Kind(integers=values.WALK))

    def _kinds(self) -> Iterator[Kind]:
        """Yields kinds of values. Each kind of floating-point numbers, integers and booleans comes at least once.

        If there is a state, positions count on from call to call, so that later calls read what each kind of numbers
        has left there.
        """
        sizes = sorted({size for each in self._inputs.values() for size in each.magnitudes})
        near = [Kind(scale=size) for size in sizes if size < values.FAR]
        far = [Kind(scale=size) for size in sizes if size >= values.FAR]
        kinds = (values.POSITIVE, values.FLAT, values.ZEROS, values.SMALL, values.TINY, values.OFFSET, values.LARGE)
        floats = [Kind(), Kind(values.MIXED), *near, *map(Kind, kinds), *far]
        several = [index for index, each in self._inputs.items() if _kind(each.example.dtype) == _FLOAT][:_FEW]
        floats += [Kind(values.LARGE, only=index) for index in several if len(several) > 1]
        integers, booleans = values.INTEGERS, values.BOOLEANS
        has = [self._has(kind) for kind in (_FLOAT, _INTEGER, _BOOLEAN)]
        count = max(1, has[0] * len(floats), has[1] * len(integers), has[2] * len(booleans))
        turns = zip(cycle(floats), cycle(integers), cycle(booleans), strict=False)
        if self._has_states and has[1]:
            yield from (Kind(integers=integer) for integer in integers)
            turns = zip(cycle([*floats, Kind()]), cycle([values.WALK]), cycle(booleans), strict=False)
            count = len(floats) + 1
        for kind, integer, boolean in islice(turns, count):
            yield replace(kind, integers=integer, booleans=boolean)

    def _has(self, kind: int) -> bool:
        """Whether an input has numbers of a kind: `_FLOAT`, `_INTEGER` or `_BOOLEAN`."""
        return any(_kind(each.example.dtype) == kind for each in self._inputs.values())

    def _shares(self) -> Iterator[dict[Any, float]]:
        """Yields sizes, as shares of the way from the smallest to the largest one: all together, then each by
        itself."""
        for share in (0.0, 1.0, 0.0):
            yield dict.fromkeys(self._sizes, share)
        yield {symbol: min(1.0, 1 / max(size.most - size.least, 1)) for symbol, size in self._sizes.items()}
        for step in (-1, 0.5, 0.3):  # the largest size but one; and sizes with few divisors
            yield {symbol: self._odd(size, step) for symbol, size in self._sizes.items()}
        for symbol in self._sizes if len(self._sizes) > 1 else ():
            for own, other in ((1.0, 0.0), (0.0, 1.0)):
                yield {each: own if each == symbol else other for each in self._sizes}
            if len(self._sizes) == 2:  # the other pairs would be the same
                break

    @staticmethod
    def _odd(size: _Size, step: float) -> float:
        """The share of the largest size but one (`step` is -1), or of a size near `step` that is no multiple of 2 or
        3."""
        way = max(size.most - size.least, 1)
        if step < 0:
            return max(way - 1, 0) / way
        near = size.least + int(way * step)
        found = next((each for each in range(near, min(near + 6, size.most)) if each % 2 and each % 3), near)
        return (found - size.least) / way

    def _at(self, shares: Mapping[Any, float]) -> dict[Any, int]:
        return {
            symbol: size.least + round((size.most - size.least) * shares[symbol])
            for symbol, size in self._sizes.items()
        }

    def _sizes_of(self, symbol: Any) -> int:
        """How many sizes of a dimension are tried."""
        size: _Size = self._sizes[symbol]
        return min(size.most - size.least + 1, _MOST_SIZES)

    def _other_small(self, number: int) -> dict[Any, int]:
        """The small sizes of a turn. Over the turns, each dimension takes its sizes in a random order of its own."""
        shares = {}
        for index, symbol in enumerate(self._sizes):
            count = self._sizes_of(symbol)
            order = torch.randperm(count, generator=torch.Generator().manual_seed(index))
            shares[symbol] = int(order[number % count]) / max(count - 1, 1)
        for halving in range(_HALVINGS):
            sizes = self._at({symbol: share / 2**halving for symbol, share in shares.items()})
            if self._is_small(sizes):
                return sizes
        return self._at(dict.fromkeys(self._sizes, 0.0))

    def _is_small(self, sizes: Mapping[Any, int]) -> bool:
        """Whether many calls with these sizes fit in the budget."""
        return self._estimate(sizes) <= self._whole // _MANY

    def _affordable(self, shares: Mapping[Any, float]) -> dict[Any, int] | None:
        """Sizes at these shares, or nearer to the smallest ones, as the budget allows; None if it allows none."""
        for halving in range(_HALVINGS):
            sizes = self._at({symbol: share / 2**halving for symbol, share in shares.items()})
            if self._spend(sizes):
                return sizes
            if not any(shares.values()):
                break
        return None

    def _spend(self, sizes: Mapping[Any, int]) -> bool:
        """Subtracts a call with these sizes from the budget. Returns False, and subtracts nothing, if the budget does
        not suffice."""
        estimate = self._estimate(sizes)
        if estimate > self._budget:
            return False
        self._budget -= estimate
        return True

    def pay(self, work: int) -> None:
        """Subtracts from the budget what was computed to judge the outputs of a call.

        Args:
            work: How many numbers operators have read and written for it.
        """
        self._budget -= work + self._operators * _OPERATOR

    def _estimate(self, sizes: Mapping[Any, int]) -> int:
        """The estimated work of a call with these sizes: it grows in proportion to each of them."""
        factor = 1.0
        for symbol, size in sizes.items():
            factor *= size / max(self._sizes[symbol].example, 1)
        return round(self._work * factor) + int(self._operators * _OPERATOR)

    def _made(self, sizes: Mapping[Any, int], kind: Kind) -> ComparedCall:
        shapes = [self._shape(index, sizes) for index in self._inputs]
        self._number += 1
        name = f"a call with random inputs of the shapes {', '.join(map(str, shapes))}"
        return ComparedCall(name, self._tries(sizes, kind), kind.is_extreme)

    def _tries(self, sizes: Mapping[Any, int], kind: Kind) -> Iterator[list[Any]]:
        """Yields inputs of a kind. If PyTorch refuses them, the next ones have smaller integers.

        The input with the smallest range of integers is blamed first: it has positions, to which the graph adds others.
        """
        blamed = sorted(self._integers(), key=lambda each: each.range)[:1]
        inputs = self._inputs
        if self._is_taken:
            for each in self._integers():
                each.take()
        self._is_taken = True
        for cautious, caution in (([], 0), (blamed, 1), (blamed, 2), (self._integers(), 2)):
            generator = torch.Generator().manual_seed(_seed(str(self._number)))
            yield [
                inputs[index].made(shape, kind.of(index), generator, caution if inputs[index] in cautious else 0)
                if (shape := self._shape(index, sizes)) is not None and index in inputs
                else example
                for index, example in enumerate(self._examples)
            ]
            self._budget -= self._estimate(sizes) // 2  # the caller asks for more, so PyTorch has refused these
            if not self._integers():
                break
            wide = [each for each in self._integers() if each.is_wide]
            for each in wide or cautious or blamed:
                each.refuse()
        self._is_taken = False

    def _integers(self) -> list[Input]:
        return [each for each in self._inputs.values() if each.integers is not None]

    def _shape(self, index: int, sizes: Mapping[Any, int]) -> list[int]:
        return [size if isinstance(size, int) else int(size.subs(sizes)) for size in self._shapes[index]]


def _seed(label: str) -> int:
    return int.from_bytes(hashlib.sha256(label.encode()).digest()[:7], "big")


def _kind(dtype: torch.dtype) -> int:
    if dtype.is_floating_point or dtype.is_complex:
        return _FLOAT
    return _BOOLEAN if dtype == torch.bool else _INTEGER


def _inputs(
    program: ExportedProgram, examples: Sequence[Any], ranges: Sequence[Limits | None]
) -> Iterator[tuple[int, Input]]:
    """Yields the inputs that are tensors, with their index."""
    magnitudes = hints.magnitudes(program)
    for index, (example, limits) in enumerate(zip(examples, ranges, strict=True)):
        if isinstance(example, torch.Tensor):
            own = hints.integers(program, index, example) if _kind(example.dtype) == _INTEGER else None
            small = example.is_floating_point() and example.element_size() < 4
            sizes = [size for size in magnitudes if not small or size < values.FAR]
            yield index, Input(example, limits, sizes, own)


def _is_one_number(example: Any) -> bool:
    """Whether all elements of an input are the same number."""
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
        symbol: replace(
            size,
            most=max(_LARGEST * size.example, size.least) if symbol in unlimited else size.most,
            may_be_zero=symbol in program.range_constraints and program.range_constraints[symbol].lower == 0,
        )
        for symbol, size in found.items()
    }
