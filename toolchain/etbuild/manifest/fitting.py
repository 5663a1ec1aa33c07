"""A manifest without what breaks its schema, so that its other problems are found in the same run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import reduce
from typing import Any

from etbuild import json_schema
from etbuild.errors import DocumentPath, Problem
from etbuild.files.value_limits import INT64

_OF_INPUTS = {"dynamic_shapes": "example_inputs", "dynamic_kwargs_shapes": "example_kwargs"}
_NAMES: tuple[DocumentPath, ...] = (("methods",), ("constant_methods",), ("named_data",), ("model", "adapters"))
"""Mappings with names that other sections may use. What breaks the schema there becomes an empty mapping."""
_STAND_INS: dict[DocumentPath, object] = {
    ("model", "huggingface", "task"): "text-generation",
    ("model", "huggingface", "cache"): {},
    ("model", "huggingface", "max_source_length"): INT64[1],
}
"""What stands in place of a value that breaks the schema, because other checks would say that it is missing."""


def other_problems(
    data: Any, broken: AbstractSet[DocumentPath], checks: Callable[[Any], Iterator[Problem]]
) -> Iterator[Problem]:
    """Yields the problems that checks find in the parts of a manifest that fit its schema.

    Nothing is reported in the section of what breaks the schema, which the checks see without the wrong value: a second
    error would only confuse. Entries of a list are checked one by one, so only those with a wrong value are left out.

    Args:
        data: The manifest.
        broken: The places that break the schema.
        checks: Yields the problems of a manifest that fits its schema.
    """
    above = {path[:length] for path in broken for length in range(len(path))}
    sections_of_broken = {_section(path) for path in broken}
    entries = {path for path in {*broken, *above} if path and isinstance(path[-1], int)}
    lists = {path[:-1] for path in entries}
    for problem in checks(_fitting(data, broken, _without_entry_numbers)[0]):
        path = problem.path or ()
        starts = {path[:length] for length in range(len(path) + 1)}
        if path not in above and not starts & (broken | lists) and _section(path) not in sections_of_broken:
            yield problem
    fitting, removed = _fitting(data, broken, _entry)
    for problem in checks(fitting) if lists else ():
        path = _before(removed, problem.path or ())
        is_beside = any(path[:n] in lists and path[: n + 1] not in entries for n in range(len(path)))
        if is_beside and not _is_of_shapes(path):
            yield replace(problem, path=path)


def _section(path: DocumentPath) -> DocumentPath:
    """What is checked as a whole: the inputs of a method with their shapes, or a method's other keys one by one. Of
    everything else, the place itself, but the runner belongs to the task that it runs."""
    if path == ("runner",):
        return ("model", "huggingface", "task")
    if len(path) > 2 and path[0] == "methods":
        return (*path[:2], _OF_INPUTS.get(str(path[2]), path[2]))
    return path


def _is_of_shapes(path: DocumentPath) -> bool:
    """Whether a place is in dynamic shapes: their entries belong to inputs and to each other."""
    return path[0] == "methods" and not _OF_INPUTS.keys().isdisjoint(path[2:3])


def _without_entry_numbers(path: DocumentPath) -> DocumentPath:
    """The place, or that of the list that it is in."""
    while isinstance(path[-1], int):
        path = path[:-1]
    return path


def _entry(path: DocumentPath) -> DocumentPath:
    """The smallest entry of a list that a place is in, or the place itself."""
    lengths = [length for length in range(1, len(path) + 1) if isinstance(path[length - 1], int)]
    return path[: lengths[-1]] if lengths else path


def _fitting(
    data: Any, broken: AbstractSet[DocumentPath], whole: Callable[[DocumentPath], DocumentPath]
) -> tuple[Any, set[DocumentPath]]:
    """The manifest without what breaks its schema, and the places that are missing.

    Args:
        data: The manifest.
        broken: The places that break the schema.
        whole: Returns the place to remove for one that breaks the schema.
    """
    removed: set[DocumentPath] = set()
    fitting = data
    while new := {whole(path) for path in broken} - removed:
        removed |= new
        fitting = _without(data, removed)
        found = json_schema.problems("model", fitting)  # a key that is required may be gone now
        places = {_before(removed, problem.path) for problem in found if problem.path}
        broken = {path for path in places if path[:-1] not in _NAMES and path not in _STAND_INS}
    return fitting, removed


def _without(data: Any, places: AbstractSet[DocumentPath], path: DocumentPath = ()) -> Any:
    """A part of a manifest without some values. `path` is its place."""
    if isinstance(data, list):
        parts = [((*path, index), part) for index, part in enumerate(data)]
        return [_without(part, places, here) for here, part in parts if here not in places]
    if not isinstance(data, dict):
        return data
    fitting = {}
    for key, part in data.items():
        here = (*path, key)
        if here not in places:
            fitting[key] = _without(part, places, here)
        elif path in _NAMES or here in _STAND_INS:
            fitting[key] = _STAND_INS.get(here, {})
    return fitting


def _before(removed: AbstractSet[DocumentPath], path: DocumentPath) -> DocumentPath:
    """The place in a manifest of one in the result of `_without`."""
    place: DocumentPath = ()
    for key in path:
        missing = sorted(each[-1] for each in removed if each[:-1] == place and isinstance(each[-1], int))
        place = (*place, reduce(lambda index, gone: index + (gone <= index), missing, key) if missing else key)
    return place
