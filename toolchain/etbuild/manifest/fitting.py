"""A manifest without the parts that break its schema, so that its other problems are found in the same run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

from etbuild import json_schema
from etbuild.errors import DocumentPath, Problem
from etbuild.files.value_limits import INT64

_OF_INPUTS = {"dynamic_shapes": "example_inputs", "dynamic_kwargs_shapes": "example_kwargs"}
_NAMES: tuple[DocumentPath, ...] = (("methods",), ("constant_methods",), ("named_data",), ("model", "adapters"))
"""Mappings with names that other sections may use. A value there that breaks the schema becomes an empty mapping."""
_STAND_INS: dict[DocumentPath, object] = {
    ("model", "huggingface", "task"): "text-generation",
    ("model", "huggingface", "cache"): {},
    ("model", "huggingface", "max_source_length"): INT64[1],
}
"""The replacements of values that break the schema. Without them, other checks would report missing values."""


def other_problems(
    data: Any, broken: AbstractSet[DocumentPath], checks: Callable[[Any], Iterator[Problem]]
) -> Iterator[Problem]:
    """Yields the problems that checks find in the sections of a manifest that fit their schema.

    The checks see the manifest without what breaks its schema: the wrong value, or the list entry that has it. The
    section of a wrong value gets no further error, because it would only confuse; other entries of a list do. Shapes
    depend on inputs and on each other, so they do not count as entries.

    Args:
        data: The manifest.
        broken: The places that break the schema.
        checks: Yields the problems of a manifest that fits its schema.
    """
    sections = {_section(path) for path in broken}
    entries = {
        path[:length] for path in broken for length in range(1, len(path) + 1) if isinstance(path[length - 1], int)
    }
    lists = {path[:-1] for path in entries}
    above = {path[:length] for path in broken for length in range(len(path))}
    fitting, numbers = _fitting(data, broken)
    for problem in checks(fitting):
        path = _before(numbers, problem.path or ())
        starts = [path[:length] for length in range(len(path) + 1)]
        if any(start in lists and path[: len(start) + 1] not in entries for start in starts[:-1]):
            reported = path[0] != "methods" or _OF_INPUTS.keys().isdisjoint(path[2:3])
        else:
            reported = path not in above and broken.isdisjoint(starts) and _section(path) not in sections
        if reported:
            yield replace(problem, path=path)


def _section(path: DocumentPath) -> DocumentPath:
    """The part that is checked as a whole: a method's inputs with their shapes, each of its other keys, or a task with
    its runner. For everything else, the place itself."""
    if path == ("runner",):
        return ("model", "huggingface", "task")
    if len(path) > 2 and path[0] == "methods":
        return (*path[:2], _OF_INPUTS.get(str(path[2]), path[2]))
    return path


def _entry(path: DocumentPath) -> DocumentPath:
    """The smallest entry of a list that a place is in, or the place itself."""
    lengths = [length for length in range(1, len(path) + 1) if isinstance(path[length - 1], int)]
    return path[: lengths[-1]] if lengths else path


Numbers = dict[DocumentPath, list[int]]
"""For each list in the fitting parts, the numbers of its entries in the whole manifest."""


def _fitting(data: Any, broken: AbstractSet[DocumentPath]) -> tuple[Any, Numbers]:
    """The manifest without the parts that break its schema, and the numbers of the remaining entries of lists."""
    removed: set[DocumentPath] = set()
    numbers: Numbers = {}

    def without(part: Any, path: DocumentPath, new_path: DocumentPath) -> Any:
        """The part of the manifest at `path`, in the form for `new_path` in the result."""
        if isinstance(part, list):
            kept = numbers[new_path] = [index for index in range(len(part)) if (*path, index) not in removed]
            return [without(part[old], (*path, old), (*new_path, new)) for new, old in enumerate(kept)]
        if not isinstance(part, dict):
            return part
        parts = {}
        for key, value in part.items():
            here = (*path, key)
            if here not in removed:
                parts[key] = without(value, here, (*new_path, key))
            elif path in _NAMES or here in _STAND_INS:
                parts[key] = _STAND_INS.get(here, {})
        return parts

    fitting = data
    while new := {_entry(path) for path in broken} - removed:
        removed |= new
        numbers.clear()
        fitting = without(data, (), ())
        found = json_schema.problems("model", fitting)  # a required key may be missing now
        places = {_before(numbers, problem.path) for problem in found if problem.path}
        broken = {path for path in places if path[:-1] not in _NAMES and path not in _STAND_INS}
    return fitting, numbers


def _before(numbers: Numbers, path: DocumentPath) -> DocumentPath:
    """The place in a manifest of a place in its fitting parts."""
    return tuple(
        numbers[path[:length]][key] if isinstance(key, int) and path[:length] in numbers else key
        for length, key in enumerate(path)
    )
