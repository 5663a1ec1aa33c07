"""Checks dynamic shapes against the inputs that they belong to, and normalizes them for the plan.

A dimension has a name and a range. The size of a derived dimension is a multiple of another's, plus or minus a number:
`2*seq + 1`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from etbuild.errors import COMPARED, DocumentPath, Problem, did_you_mean, unknown

CONTAINERS = ("list", "tuple", "dict")
INPUTS = ("shape", "factory", "file", "value", *CONTAINERS)
"""The keys that say what an example input is."""
_DERIVED = re.compile(r"(?:(\d+) ?\* ?)?([A-Za-z_]\w*?)(?: ?([+-]) ?(\d+))?", re.ASCII)


@dataclass(frozen=True)
class _Named:
    """A dimension in a manifest.

    Attributes:
        low: Its smallest size.
        high: Its largest size.
        multiple_of: A number that divides each of its sizes.
        size: Its size in the first example input that has it; None if that is unknown.
    """

    low: int
    high: int
    multiple_of: int
    size: int | None


def is_dim(shapes: Any) -> bool:
    """Whether a part of dynamic shapes is a dimension, and not the shapes of a mapping of inputs."""
    return isinstance(shapes, dict) and isinstance(shapes.get("dim"), str)


def normalized(shapes: Any, named: dict[str, dict[str, Any]]) -> Any:
    """Dynamic shapes with all defaults; None if nothing is dynamic.

    Args:
        shapes: The dynamic shapes of an input.
        named: The named dimensions of the method, from `named_dims`.
    """
    if is_dim(shapes):
        name, times, plus = _parsed(shapes["dim"])
        derived = {} if (times, plus) == (1, 0) else {"times": times, "plus": plus}
        return {**named[name], "dim": name, **derived}
    if isinstance(shapes, list):
        reduced = [normalized(part, named) for part in shapes]
        return reduced if any(part is not None for part in reduced) else None
    if isinstance(shapes, dict):
        by_key = {key: normalized(part, named) for key, part in shapes.items()}
        return by_key if any(part is not None for part in by_key.values()) else None
    return None


def named_dims(shapes: Any) -> dict[str, dict[str, Any]]:
    """The named dimensions in the dynamic shapes of a method, which give derived ones their range."""
    if is_dim(shapes):
        return {shapes["dim"]: {"min": shapes.get("multiple_of", 1), **shapes}} if "max" in shapes else {}
    parts = shapes.values() if isinstance(shapes, dict) else shapes if isinstance(shapes, list) else ()
    return {name: dim for part in parts for name, dim in named_dims(part).items()}


def _parsed(text: str) -> tuple[str, int, int]:
    """The name of a dimension, the factor, and the number to add."""
    match = _DERIVED.fullmatch(text)
    if match is None:  # the schema refuses it
        return text, 1, 0
    times, name, sign, plus = match.groups()
    return name, int(times or 1), int(plus or 0) * (-1 if sign == "-" else 1)


class Check:
    """Finds the problems of the dynamic shapes of one method that a schema cannot find."""

    def __init__(self) -> None:
        self._named: dict[str, _Named] = {}
        self._derived: list[tuple[str, int | None, DocumentPath, list[str]]] = []

    def of_sequence(self, inputs: list[Any], shapes: list[Any], path: DocumentPath) -> Iterator[Problem]:
        """Checks the shapes of a list of inputs, in its order."""
        if len(shapes) != len(inputs):
            yield Problem(
                f"{_entries(shapes)} for {len(inputs)} {'input' if len(inputs) == 1 else 'inputs'}",
                path,
                "write one entry for each input, `null` for a fixed one",
            )
            return
        for index, (example, part) in enumerate(zip(inputs, shapes, strict=True)):
            yield from self._of_input(example, part, (*path, index))

    def of_mapping(self, inputs: dict[str, Any], shapes: dict[str, Any], path: DocumentPath) -> Iterator[Problem]:
        """Checks the shapes of a mapping of inputs. An input without shapes is fixed."""
        for key, hint in unknown(shapes, inputs):
            yield Problem(f"there is no input `{key}`", (*path, key), hint, at_key=True)
        for key, part in shapes.items():
            if key in inputs:
                yield from self._of_input(inputs[key], part, (*path, key))

    def of_derived(self) -> Iterator[Problem]:
        """Checks the derived dimensions. All others must have been checked."""
        for number, (text, size, path, parts) in enumerate(self._derived):
            name, times, plus = _parsed(text)
            dim = self._named.get(name)
            if dim is None and text == name:
                yield Problem("the key `max` is missing", path, "add `max: 128`")
            elif dim is None:
                near = did_you_mean(name, self._named) if number < COMPARED else None
                hint = near or f"write the range of `{name}` where it stands by itself"
                yield Problem(f"`{text}` needs a dimension `{name}`, and the method has none", (*path, "dim"), hint)
            elif parts:
                hint = "repeat the whole range with `max`, or leave it out"
                yield Problem(f"`{parts[0]}` stands here without `max`", (*path, parts[0]), hint, at_key=True)
            elif times < 1 or times * dim.low + plus < 0:
                yield Problem(f"`{text}` is {times * dim.low + plus} for {name} = {dim.low}", (*path, "dim"))
            elif size is not None and dim.size is not None and size != times * dim.size + plus:
                yield Problem(
                    f"`{text}` is {times * dim.size + plus} in the example inputs, and this input has size {size}",
                    path,
                    "change a shape",
                )

    def _of_input(self, example: Any, shapes: Any, path: DocumentPath) -> Iterator[Problem]:
        """Checks that dynamic shapes have the form of their input, and each dimension."""
        if not isinstance(example, dict) or shapes is None:
            return
        kind = next((kind for kind in INPUTS if kind in example), None)
        if kind == "value":
            yield Problem("a plain value has no dimensions", path, "write `null`")
        elif kind in ("list", "tuple") and isinstance(example[kind], list):
            if isinstance(shapes, list):
                yield from self.of_sequence(example[kind], shapes, path)
            else:
                yield Problem(f"the input is a {kind}", path, "write a list of one entry for each element, or `null`")
        elif kind == "dict" and isinstance(example[kind], dict):
            if isinstance(shapes, dict) and not is_dim(shapes):
                yield from self.of_mapping(example[kind], shapes, path)
            else:
                yield Problem("the input is a mapping", path, "write a mapping by key, or `null`")
        elif kind == "factory":
            yield from self._of_factory(shapes, path)
        elif isinstance(shapes, list):
            yield from self._of_tensor(example.get("shape"), shapes, path)
        else:
            yield Problem("the input is a tensor", path, "write a list of one entry for each dimension, or `null`")

    def _of_factory(self, shapes: Any, path: DocumentPath) -> Iterator[Problem]:
        """Checks the ranges for the result of a factory. Its form is not known yet."""
        if is_dim(shapes):
            yield from self._of_dim(shapes, None, path)
        elif isinstance(shapes, (list, dict)):
            for key, part in shapes.items() if isinstance(shapes, dict) else enumerate(shapes):
                yield from self._of_factory(part, (*path, key))

    def _of_tensor(self, sizes: Any, dims: list[Any], path: DocumentPath) -> Iterator[Problem]:
        if isinstance(sizes, list) and len(dims) != len(sizes):
            yield Problem(
                f"{_entries(dims)} for an input of {len(sizes)} dimensions",
                path,
                "write one entry for each dimension, `null` for a fixed one",
            )
            return
        for index, dim in enumerate(dims):
            if is_dim(dim):
                size = sizes[index] if isinstance(sizes, list) and isinstance(sizes[index], int) else None
                yield from self._of_dim(dim, size, (*path, index))
            elif isinstance(dim, list | dict):
                hint = "a dimension is `null` or {dim: NAME, max: SIZE}"
                yield Problem("the input is a tensor", (*path, index), hint)

    def _of_dim(self, dim: dict[str, Any], size: int | None, path: DocumentPath) -> Iterator[Problem]:
        text, multiple_of = dim["dim"], dim.get("multiple_of", 1)
        low, high = dim.get("min", multiple_of), dim.get("max")
        if _parsed(text) != (text, 1, 0) or "max" not in dim:
            yield from self._of_derivation(dim, size, path)
        elif isinstance(low, int) and isinstance(high, int) and isinstance(multiple_of, int) and multiple_of > 0:
            named = _Named(low, high, multiple_of, size)
            yield from _range_problems(named, path) or self._clashes(text, named, path)
            self._named.setdefault(text, named)

    def _of_derivation(self, dim: dict[str, Any], size: int | None, path: DocumentPath) -> Iterator[Problem]:
        """Keeps a derived dimension for later: the one that it is derived from may stand behind it."""
        name, *change = _parsed(dim["dim"])
        for key in ("min", "max", "multiple_of"):
            if key in dim and change != [1, 0]:
                message = f"`{dim['dim']}` has the range that follows from `{name}`"
                yield Problem(message, (*path, key), f"remove `{key}`", at_key=True)
        parts: list[str] = [key for key in ("min", "multiple_of") if key in dim and change == [1, 0]]
        self._derived.append((dim["dim"], size, path, parts))

    def _clashes(self, name: str, dim: _Named, path: DocumentPath) -> Iterator[Problem]:
        """Compares a dimension with an earlier one of the same name."""
        first = self._named.get(name, dim)
        if (first.low, first.high, first.multiple_of) != (dim.low, dim.high, dim.multiple_of):
            steps = f" in steps of {first.multiple_of}" if first.multiple_of > 1 else ""
            yield Problem(
                f"the dimension `{name}` has the range {first.low} to {first.high}{steps} in an earlier place",
                path,
                "dimensions of one name have one size: repeat the range, or use another name",
            )
        elif None not in (dim.size, first.size) and first.size != dim.size:
            yield Problem(
                f"the dimension `{name}` has size {first.size} in another example input and {dim.size} in this one",
                path,
                "dimensions of one name have one size: change a shape, or use another name",
            )


def _range_problems(dim: _Named, path: DocumentPath) -> list[Problem]:
    """The problem of a range and of the example's size, in a list; empty if there is none."""
    low, high, size, step = dim.low, dim.high, dim.size, dim.multiple_of
    if low >= high:
        return [Problem(f"min {low} is not less than max {high}", path, "write `null` for a fixed dimension")]
    for key, value in (("min", low), ("max", high)):
        if value % step:
            near = {max(step, value // step * step), (value // step + 1) * step}
            hint = f"write {' or '.join(map(str, sorted(near)))}"
            return [Problem(f"{key} {value} is not a multiple of {step}", (*path, key), hint)]
    if size is None:
        return []
    if not low <= size <= high:
        message = f"the example's size {size} is not between min {low} and max {high}"
        return [Problem(message, path, "change the range or the example's shape")]
    if size % step:
        return [Problem(f"the example's size {size} is not a multiple of {step}", path, "change the example's shape")]
    if size < 2 or (size == step and high > step):
        least = max(2, step + 1) if step == 1 else 2 * step
        message = f"the example's size {size} would make the dimension fixed"
        hint = f"torch.export treats sizes 0 and 1 as constants: give the example a size from {least} to {high}"
        return [Problem(message, path, hint)]
    return []


def _entries(values: list[Any]) -> str:
    return f"{len(values)} {'entry' if len(values) == 1 else 'entries'}"
