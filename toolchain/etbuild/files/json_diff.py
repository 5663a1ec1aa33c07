"""Finds the differences between two pieces of JSON data, leaf by leaf."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from etbuild.errors import DocumentPath


class Absent:
    """Marks a missing value. None cannot mark it, because JSON data may contain None."""

    def __repr__(self) -> str:
        return "absent"


ABSENT = Absent()


@dataclass(frozen=True)
class Change:
    """One difference.

    Attributes:
        path: The location of the value.
        before: The value before, or `ABSENT`.
        after: The value after, or `ABSENT`.
    """

    path: DocumentPath
    before: Any
    after: Any

    @property
    def kind(self) -> str:
        """`added`, `removed` or `changed`."""
        return "added" if self.before is ABSENT else "removed" if self.after is ABSENT else "changed"


def changes(before: Any, after: Any, path: DocumentPath = ()) -> Iterator[Change]:
    """Yields the differences between two values, in the order of their paths.

    Mappings are compared key by key, and lists of equal length entry by entry. A list of plain values, such as a shape,
    is compared as one value; so is a list if its length changed.
    """
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            yield from changes(before.get(key, ABSENT), after.get(key, ABSENT), (*path, key))
    elif _comparable_lists(before, after):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from changes(old, new, (*path, index))
    elif _differ(before, after):
        yield Change(path, before, after)


def _differ(before: Any, after: Any) -> bool:
    """Whether two plain values, or lists of them, differ. 1 differs from 1.0 and from true."""
    if before != after or type(before) is not type(after):
        return True
    return isinstance(before, list) and list(map(type, before)) != list(map(type, after))


def _comparable_lists(before: Any, after: Any) -> bool:
    if not (isinstance(before, list) and isinstance(after, list) and len(before) == len(after)):
        return False
    return any(isinstance(value, (dict, list)) for value in [*before, *after])
