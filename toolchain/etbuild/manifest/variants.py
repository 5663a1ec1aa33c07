"""Variants of a manifest: mappings that are merged over the rest of it.

The rules are those of JSON Merge Patch (RFC 7396): mappings merge by key, lists and single values are replaced, and
`null` removes a key. A `null` that removes nothing is an error here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from etbuild import json_schema, plugins
from etbuild.errors import COMPARED, DocumentPath, Position, Problem, did_you_mean, unknown
from etbuild.manifest import parameters
from etbuild.manifest.parameters import mapping
from etbuild.manifest.yaml_document import Document

KEY = "variants"
ALL = "all"
"""As the name of a variant in a command, this word means the program without a variant and every variant."""
_RESERVED = (ALL, "export", "lower", "lowered")  # the others are in names of files of build rules
_NOT_IN_VARIANTS = ("schema", "name", KEY)


@dataclass
class Merged:
    """A manifest with a variant merged over it.

    Attributes:
        variant: The name of the variant; None for the manifest without one.
        document: The merged data without `variants`, and the position of each value.
        own: The places that the variant writes. Their positions are those of the variant.
        problems: The problems of the merge.
    """

    variant: str | None
    document: Document
    own: set[DocumentPath] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)

    def writes(self, path: DocumentPath) -> bool:
        """Whether the variant has the value at a place, or its nearest existing parent."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.document.positions:
                return path[:length] in self.own
        return False

    def replaces(self, path: DocumentPath) -> bool:
        """Whether the variant writes the value at a place itself, and not only a part of it."""
        value: Any = self.document.data
        for key in path:
            in_list = isinstance(value, list) and isinstance(key, int) and key < len(value)
            value = value[key] if in_list or (isinstance(value, dict) and key in value) else None
        return path in self.own and not isinstance(value, dict)

    def blamed(self, problem: Problem) -> Problem:
        """A located problem, with the place in the variant, or with its name if the value is not the variant's."""
        if self.variant is None or (problem.path or ())[:1] == (KEY,):
            return problem
        if self.writes(problem.path or ()):
            return replace(problem, path=(KEY, self.variant, *(problem.path or ())))
        return replace(problem, message=f"{problem.message} (in the variant `{self.variant}`)")


def names(data: Any) -> list[str]:
    """The names of the variants, in the order of the manifest. The manifest may break its schema."""
    return list(mapping(data, KEY)) if isinstance(data, dict) else []


def check(data: dict[str, object], wanted: Sequence[str | None] = ()) -> Iterator[Problem]:
    """Yields the problems of the variants that are not about their content.

    Args:
        data: The manifest. It may break its schema.
        wanted: The requested variants. None means the manifest without a variant.
    """
    if KEY in data:
        found = json_schema.problems("model", {KEY: data[KEY]})
        yield from (problem for problem in found if problem.path)  # those without a path are about missing keys
    for name, variant in mapping(data, KEY).items():
        if name in _RESERVED:
            yield Problem(f"a variant cannot be called `{name}`", (KEY, name), "choose another name", at_key=True)
        for key in _NOT_IN_VARIANTS:
            if isinstance(variant, dict) and key in variant:
                hint = f"the program of a variant is called {data.get('name')}.{name}" if key == "name" else None
                yield Problem(f"a variant cannot have the key `{key}`", (KEY, name, key), hint, at_key=True)
    if any(isinstance(part, dict) and "qualify" in part for part in (data, *mapping(data, KEY).values())):
        yield from plugins.load("manifest_section", "variants.*.qualify")().check(data)
    for name, hint in unknown([name for name in wanted if name is not None], names(data)):
        yield Problem(f"there is no variant `{name}`", (KEY,), hint or "the manifest has no `variants`")


def merge(document: Document, variant: str | None) -> Merged:
    """Merges a variant over a manifest.

    Args:
        document: The manifest, which is a mapping.
        variant: The name of the variant, which is a mapping; None for the manifest without its variants.
    """
    base = {key: value for key, value in document.data.items() if key != KEY}
    if variant is None:
        return Merged(None, Document(base, document.positions, document.keys))
    replaced: set[DocumentPath] = set()
    problems: list[Problem] = []
    data = _merged(base, document.data[KEY][variant], (), replaced, problems)
    prefix = (KEY, variant)
    places = [_moved(positions, prefix, replaced) for positions in (document.positions, document.keys)]
    own = {path[2:] for path in document.positions if path[:2] == prefix}
    return Merged(variant, Document(data, *places), own, problems)


def _merged(
    base: Any, patch: dict[str, object], path: DocumentPath, replaced: set[DocumentPath], problems: list[Problem]
) -> dict[str, object]:
    """A mapping with a second one merged over it. `replaced` gets the places that change."""
    if not isinstance(base, dict) or parameters.referred(base) is not None:
        replaced.add(path)
        base = {}
    result = dict(base)
    for key, value in patch.items():
        here = (*path, key)
        if value is None and key not in base:
            near = did_you_mean(key, base) if len(problems) < COMPARED else None
            hint = near or "here `null` removes a key: leave it out"
            problems.append(Problem(f"there is no `{key}` to remove", here, hint, at_key=True))
        elif value is None:
            replaced.add(here)
            del result[key]
        elif isinstance(value, dict) and parameters.referred(value) is None:
            result[key] = _merged(base.get(key), value, here, replaced, problems)
        else:
            replaced.add(here)
            result[key] = value
    return result


def _moved(
    positions: dict[DocumentPath, Position], prefix: DocumentPath, replaced: set[DocumentPath]
) -> dict[DocumentPath, Position]:
    """The positions of a merged manifest: those of the variant replace the positions of replaced values."""
    kept = {
        path: position
        for path, position in positions.items()
        if not any(path[:length] in replaced for length in range(len(path) + 1))
    }
    return {**kept, **{path[2:]: position for path, position in positions.items() if path[:2] == prefix}}
