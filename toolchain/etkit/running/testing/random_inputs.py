"""Makes random inputs of a method, over the ranges of its dynamic dimensions. The same seed makes the same inputs."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from etbuild.errors import InputError
from etbuild.plan.parts import Dim, ExportMethod
from etkit.local.prepared_model import Inputs
from etplugins.comparison import random_values
from etplugins.model_tests.parts import MethodTests

_UNLIMITED = 4  # a dimension without a largest size is tested up to so many times the size of the example
_LARGEST = 2**31

Dims = tuple[Dim | None, ...]
"""For each size of a tensor, its dimension; None if the size is fixed."""
Range = tuple[int, int, int]
"""The smallest size, the largest size, and a number that divides each size."""


def cases(
    name: str, method: ExportMethod, tests: MethodTests, seed: int, examples: Inputs
) -> Iterator[tuple[str, Inputs]]:
    """Random inputs of a method, each with a name. If there are dynamic dimensions, the smallest and the largest sizes
    come first, and then sizes between them.

    Args:
        name: The method's name.
        method: The method in the export plan.
        tests: How it is tested.
        seed: The seed.
        examples: Its example inputs.
    """
    limits = ranges(method, examples)
    wanted: list[tuple[str, Callable[[random.Random, Range], int]]] = []
    if limits and tests.random:
        wanted += [("smallest", lambda _, size: size[0]), ("largest", lambda _, size: size[1])]
    wanted += [(f"random-{number}", _between) for number in range(1, tests.random + 1)]
    for label, choose in wanted:
        text = f"{seed}/{name}/{label}".encode()
        drawn = random.Random(int.from_bytes(hashlib.sha256(text).digest()[:8], "big"))
        sizes = {dim: choose(drawn, size) for dim, size in sorted(limits.items())}
        yield label, _random(sizes, method, tests, examples, drawn)


def of_sizes(method: ExportMethod, tests: MethodTests, examples: Inputs, sizes: Mapping[str, int]) -> Inputs:
    """Random inputs of given sizes. A dimension without a given size has that of the example.

    Args:
        method: The method in the export plan.
        tests: How it is tested.
        examples: Its example inputs.
        sizes: Sizes of dynamic dimensions, by name.

    Raises:
        InputError: The method does not take such a size.
    """
    own = {dim.dim: (size - dim.plus) // dim.times for size, dim in _dynamic_sizes(method, examples)}
    for name, (least, most, step) in ranges(method, examples, _LARGEST).items():
        size = sizes.get(name, least)
        if not least <= size <= most or size % step:
            multiple = f" in steps of {step}" if step > 1 else ""
            above = f" to {most}" if most < _LARGEST else " upwards"
            raise InputError.of(f"{name}={size}: the dimension goes from {least}{above}{multiple}")
    return _random({**own, **sizes}, method, tests, examples, random.Random(0))


def all_alike(tests: MethodTests, method: ExportMethod, examples: Inputs) -> bool:
    """Whether an input of integers has one number in all cases: without a range, it has those of the example."""
    leaves = [value for value, _ in _leaves(method, examples)]
    return any(
        isinstance(value, torch.Tensor)
        and limits is None
        and not value.is_floating_point()
        and value.dtype != torch.bool
        and value.numel() > 0
        and bool((value == value.flatten()[0]).all())
        for value, limits in itertools.zip_longest(leaves, tests.ranges[: len(leaves)])
    )


def _between(drawn: random.Random, size: Range) -> int:
    smallest, largest, step = size
    return drawn.randrange(smallest, largest + 1, step)


def ranges(method: ExportMethod, examples: Inputs, unlimited: int | None = None) -> dict[str, Range]:
    """The sizes of each dynamic dimension, by name.

    Args:
        method: The method in the export plan.
        examples: Its example inputs.
        unlimited: The largest size of a dimension that has none; by default a few times that of the example.
    """
    found: dict[str, Range] = {}
    for size, dim in _dynamic_sizes(method, examples):
        step = dim.multiple_of
        least = -(-max(dim.min, 1) // step) * step
        own = max((size - dim.plus) // dim.times, least)
        most = (unlimited or _UNLIMITED * own) if dim.max is None else dim.max // step * step
        known = found.get(dim.dim, (least, most, step))
        found[dim.dim] = (max(known[0], least), min(known[1], most), max(known[2], step))
    return found


def _dynamic_sizes(method: ExportMethod, examples: Inputs) -> Iterator[tuple[int, Dim]]:
    """The dynamic sizes of the example inputs, each with its dimension."""
    for value, dims in _leaves(method, examples):
        if isinstance(value, torch.Tensor):
            yield from ((size, dim) for size, dim in zip(value.shape, dims or (), strict=False) if dim is not None)


def _leaves(method: ExportMethod, examples: Inputs) -> list[tuple[Any, Dims | None]]:
    """The tensors and plain values of the example inputs with their dimensions, in the order of pytrees."""
    positional, keywords = examples
    shapes = method.dynamic_shapes or (None,) * len(positional)
    return [*_parts(positional, shapes), *_parts(keywords, method.dynamic_kwargs_shapes)]


def _parts(value: Any, shapes: Any) -> Iterator[tuple[Any, Dims | None]]:
    if isinstance(value, (list, tuple)):
        for part, shape in zip(value, (None,) * len(value) if shapes is None else shapes, strict=True):
            yield from _parts(part, shape)
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _parts(part, (shapes or {}).get(key))
    else:
        yield value, shapes


def _random(
    sizes: Mapping[str, int], method: ExportMethod, tests: MethodTests, examples: Inputs, drawn: random.Random
) -> Inputs:
    """Random inputs with the given size of each dynamic dimension, by name."""
    generator = torch.Generator().manual_seed(drawn.getrandbits(63))
    made, leaves = [], _leaves(method, examples)
    for (value, dims), limits in itertools.zip_longest(leaves, tests.ranges[: len(leaves)]):
        if isinstance(value, torch.Tensor):
            shape = [
                size if dim is None else dim.times * sizes[dim.dim] + dim.plus
                for size, dim in zip(value.shape, dims or (None,) * value.dim(), strict=True)
            ]
            value = random_values.like(value, shape, limits, generator)
        made.append(value)
    positional, keywords = pytree.tree_unflatten(made, pytree.tree_structure(examples))
    return positional, keywords
