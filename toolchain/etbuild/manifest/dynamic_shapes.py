"""Checks dynamic shapes against the inputs that they belong to, and normalizes them for the plan.

A dimension has a name and a range. The size of a derived dimension is a multiple of another dimension's, plus or minus
a number: `2*seq + 1`. The manifest may have either range, because each follows from the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeGuard

from etbuild.errors import COMPARED, DocumentPath, Problem, counted, did_you_mean, unknown
from etbuild.manifest.sections import Dim, ExampleInput, Shapes

INPUTS = ("shape", "factory", "file", "value", "list", "tuple", "dict")
"""The keys for the kinds of example inputs."""
_DERIVED = re.compile(r"(?:(\d+) ?\* ?)?([A-Za-z_]\w*?)(?: ?([+-]) ?(\d+))?", re.ASCII)


@dataclass(frozen=True)
class _Named:
    """A dimension in a manifest: its smallest and largest size, a number that divides all its sizes, and its size in
    the first example input that has it (None if unknown)."""

    low: int
    high: int
    multiple_of: int
    size: int | None


def parts(example: ExampleInput) -> dict[int | str, ExampleInput]:
    """The elements of a list, tuple or mapping of inputs, by index or key. Empty for any other input."""
    if "dict" in example:
        return dict(example["dict"].items())
    return dict(enumerate(example.get("list", example.get("tuple", []))))


def is_dim(shapes: Shapes) -> TypeGuard[Dim]:
    """Whether a part of dynamic shapes is a dimension, and not the shapes of a mapping of inputs."""
    return isinstance(shapes, dict) and isinstance(shapes.get("dim"), str)


def normalized(shapes: Shapes, named: dict[str, Dim]) -> Shapes:
    """Dynamic shapes with all defaults; None if nothing is dynamic.

    Args:
        shapes: The dynamic shapes of an input.
        named: The named dimensions of the method, from `named_dims`.
    """
    if is_dim(shapes):
        name, times, plus = _parsed(shapes["dim"])
        derived = {} if (times, plus) == (1, 0) else {"times": times, "plus": plus}
        return {**named[name], "dim": name, **derived}
    if shapes is None:
        return None
    by_key = {key: normalized(part, named) for key, part in _entries_of(shapes)}
    if all(part is None for part in by_key.values()):
        return None
    return by_key if isinstance(shapes, dict) else [*by_key.values()]


def named_dims(shapes: Shapes) -> dict[str, Dim]:
    """The named dimensions in the dynamic shapes of a method. Derived dimensions get their range from them."""
    if is_dim(shapes):
        return _ranged(shapes) if "max" in shapes else {}
    return {name: dim for _, part in _entries_of(shapes) for name, dim in named_dims(part).items()}


def _entries_of(shapes: Shapes) -> Iterable[tuple[int | str, Shapes]]:
    """The parts of dynamic shapes, by index or key."""
    return shapes.items() if isinstance(shapes, dict) else enumerate(shapes or ())


def _ranged(dim: Dim) -> dict[str, Dim]:
    """The range of the named dimension. It follows from the range of a derived one."""
    name, times, plus = _parsed(dim["dim"])
    if (times, plus) == (1, 0):
        return {name: {"min": dim.get("multiple_of", 1), **dim}}
    low = (dim["min"] - plus) // times if "min" in dim else 1
    return {name: {"min": low, "max": (dim["max"] - plus) // times}}


def _parsed(text: str) -> tuple[str, int, int]:
    """The name of a dimension, its factor, and the number to add."""
    match = _DERIVED.fullmatch(text)
    assert match is not None, text  # the schema has the same pattern
    times, name, sign, plus = match.groups()
    return name, int(times or 1), int(plus or 0) * (-1 if sign == "-" else 1)


class Check:
    """Finds the problems of a method's dynamic shapes that a schema cannot find."""

    def __init__(self) -> None:
        self._named: dict[str, _Named] = {}
        self._derived: list[tuple[str, int | None, DocumentPath, list[str]]] = []

    def of_sequence(self, inputs: list[ExampleInput], shapes: list[Shapes], path: DocumentPath) -> Iterator[Problem]:
        """Checks the shapes of a list of inputs, in its order."""
        if len(shapes) != len(inputs):
            message = f"{counted(len(shapes), 'entry')} for {counted(len(inputs), 'input')}"
            yield Problem(message, path, "write one entry for each input, `null` for a fixed one")
            return
        for index, (example, part) in enumerate(zip(inputs, shapes, strict=True)):
            yield from self._of_input(example, part, (*path, index))

    def of_mapping(
        self, inputs: Mapping[str, ExampleInput], shapes: dict[str, Shapes], path: DocumentPath
    ) -> Iterator[Problem]:
        """Checks the shapes of a mapping of inputs. An input without shapes is fixed."""
        for key, hint in unknown(shapes, inputs):
            yield Problem(f"there is no input `{key}`", (*path, key), hint, at_key=True)
        for key, part in shapes.items():
            if key in inputs:
                yield from self._of_input(inputs[key], part, (*path, key))

    def of_derived(self) -> Iterator[Problem]:
        """Checks the derived dimensions, after all others were checked."""
        for number, (text, size, path, keys) in enumerate(self._derived):
            name, times, plus = _parsed(text)
            dim = self._named.get(name)
            if dim is None and text == name:
                yield Problem("the key `max` is missing", path, "add `max: 128`")
            elif keys:
                hint = "repeat the whole range with `max`, or leave it out"
                yield Problem(f"`{keys[0]}` is used here without `max`", (*path, keys[0]), hint, at_key=True)
            elif dim is None:
                near = did_you_mean(name, self._named) if number < COMPARED else None
                hint = near if near and near.startswith("did you mean") else "write a range here, with `max`"
                yield Problem(f"`{text}` needs a dimension `{name}`, and the method has none", (*path, "dim"), hint)
            elif times * dim.low + plus < 0:
                yield Problem(f"`{text}` is {times * dim.low + plus} for {name} = {dim.low}", (*path, "dim"))
            elif size is not None and dim.size is not None and size != times * dim.size + plus:
                message = f"`{text}` is {times * dim.size + plus} in the example inputs, and this input has size {size}"
                yield Problem(message, path, "change a shape")

    def _of_input(self, example: ExampleInput, shapes: Shapes, path: DocumentPath) -> Iterator[Problem]:
        """Checks that dynamic shapes have the form of their input, and checks each dimension."""
        kind = next((kind for kind in (*INPUTS, "of_model") if kind in example), None)
        if shapes is None:
            return
        if kind == "value":
            yield Problem("a plain value has no dimensions", path, "write `null`")
        elif kind in ("list", "tuple"):
            if isinstance(shapes, list):
                yield from self.of_sequence([*parts(example).values()], shapes, path)
            else:
                yield Problem(f"the input is a {kind}", path, "write a list of one entry for each element, or `null`")
        elif kind == "dict":
            if isinstance(shapes, dict) and not is_dim(shapes):
                yield from self.of_mapping(example["dict"], shapes, path)
            else:
                yield Problem("the input is a mapping", path, "write a mapping by key, or `null`")
        elif kind in ("factory", None):
            yield from self._of_factory(shapes, path)
        elif isinstance(shapes, list):
            yield from self._of_tensor(example.get("shape"), shapes, path)
        else:
            yield Problem("the input is a tensor", path, "write a list of one entry for each dimension, or `null`")

    def _of_factory(self, shapes: Shapes, path: DocumentPath) -> Iterator[Problem]:
        """Checks the ranges for an input whose form is not known, such as the result of a factory."""
        if is_dim(shapes):
            yield from self._of_dim(shapes, None, path)
        elif shapes is not None:
            for key, part in _entries_of(shapes):
                yield from self._of_factory(part, (*path, key))

    def _of_tensor(self, sizes: list[int] | None, dims: list[Shapes], path: DocumentPath) -> Iterator[Problem]:
        if sizes is not None and len(dims) != len(sizes):
            message = f"{counted(len(dims), 'entry')} for an input of {counted(len(sizes), 'dimension')}"
            yield Problem(message, path, "write one entry for each dimension, `null` for a fixed one")
            return
        for index, dim in enumerate(dims):
            if is_dim(dim):
                yield from self._of_dim(dim, None if sizes is None else sizes[index], (*path, index))
            elif dim is not None:
                hint = "a dimension is `null` or {dim: NAME, max: SIZE}"
                yield Problem("the input is a tensor", (*path, index), hint)

    def _of_dim(self, dim: Dim, size: int | None, path: DocumentPath) -> Iterator[Problem]:
        name, times, plus = _parsed(dim["dim"])
        is_derived = (times, plus) != (1, 0)
        if is_derived and "multiple_of" in dim:
            message = f"`{dim['dim']}` is derived from `{name}`, which may have multiples"
            yield Problem(message, (*path, "multiple_of"), "remove `multiple_of`", at_key=True)
        if is_derived or "max" not in dim:  # its dimension without factor may come later
            keys: list[str] = [key for key in ("min", "multiple_of") if key in dim and "max" not in dim]
            fits = size is None or "max" not in dim or (size - plus) % times == 0
            self._derived.append((dim["dim"], size if fits else None, path, keys))
        if "max" in dim:
            step = times if is_derived else dim.get("multiple_of", 1)
            yield from self._of_range(name, dim, (step, plus), size, path)

    def _of_range(
        self, name: str, dim: Dim, form: tuple[int, int], size: int | None, path: DocumentPath
    ) -> Iterator[Problem]:
        """Checks a range, and keeps it for other places of the named dimension."""
        times, plus = form
        low, high = dim.get("min", times + plus), dim["max"]
        problems = _range_problems(dim["dim"], (low, high), form, size, path)
        is_derived = _parsed(dim["dim"]) != (name, 1, 0)
        if not is_derived:
            named = _Named(low, high, times, size)
        else:
            of_name = None if size is None else (size - plus) // times
            named = _Named((low - plus) // times, (high - plus) // times, 1, of_name)
            if named.low < 0 and "min" in dim and not problems:
                message = f"`{dim['dim']}` is {low} only for {name} = {named.low}"
                problems = [Problem(message, (*path, "min"), f"write {plus} or more")]
        yield from problems or self._clashes(name, named, path, is_derived=is_derived)
        self._named.setdefault(name, named)

    def _clashes(self, name: str, dim: _Named, path: DocumentPath, *, is_derived: bool) -> Iterator[Problem]:
        """Compares a dimension, or one derived from it, with an earlier one of the same name."""
        first = self._named.get(name, dim)
        if (first.low, first.high, first.multiple_of) != (dim.low, dim.high, dim.multiple_of):
            steps = f" in steps of {first.multiple_of}" if first.multiple_of > 1 else ""
            message = f"the dimension `{name}` has the range {first.low} to {first.high}{steps} in an earlier place"
            hint = "dimensions of one name have one size: repeat the range, or use another name"
            if is_derived:
                hint = f"the range of what is derived from `{name}` follows from it: remove the range here"
            yield Problem(message, path, hint)
        elif not is_derived and None not in (dim.size, first.size) and first.size != dim.size:
            sizes = f"size {first.size} in another example input and {dim.size} in this one"
            hint = "dimensions of one name have one size: change a shape, or use another name"
            yield Problem(f"the dimension `{name}` has {sizes}", path, hint)


def _range_problems(
    text: str, limits: tuple[int, int], form: tuple[int, int], size: int | None, path: DocumentPath
) -> list[Problem]:
    """The problem of a range or of the example's size, in a list; empty if there is none.

    Args:
        text: The size as the manifest writes it; it may be derived.
        limits: The smallest and the largest size.
        form: Each size is a multiple of the first number, plus the second one.
        size: The size in the example input; None if that is unknown.
        path: The place of the dimension.
    """
    (low, high), (times, plus) = limits, form
    kind = f"of the form `{text}`" if plus or text[0].isdigit() else f"a multiple of {times}"
    if low >= high:
        return [Problem(f"min {low} is not less than max {high}", path, "write `null` for a fixed dimension")]
    for key, value in (("min", low), ("max", high)):
        if (value - plus) % times:
            below = (value - plus) // times * times + plus
            near = {max(times + plus, below), below + times}
            hint = f"write {' or '.join(map(str, sorted(near)))}"
            return [Problem(f"{key} {value} is not {kind}", (*path, key), hint)]
    if size is None:
        return []
    if not low <= size <= high:
        message = f"the example's size {size} is not between min {low} and max {high}"
        return [Problem(message, path, "change the range or the example's shape")]
    if (size - plus) % times:
        return [Problem(f"the example's size {size} is not {kind}", path, "change the example's shape")]
    if size < 2 or (size - plus) // times < 2:
        least = max(2, 2 * times + plus)
        message = f"the example's size {size} would make the dimension fixed"
        hint = f"torch.export treats sizes 0 and 1 as constants: give the example a size from {least} to {high}"
        return [Problem(message, path, hint)]
    return []
