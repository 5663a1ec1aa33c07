"""The section `qualify` of a variant: what it must reach, or it is left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from etbuild.errors import DocumentPath, Problem, did_you_mean
from etbuild.manifest.plugin_sections import Section
from etbuild.manifest.sections import Manifest
from etplugins.model_tests.manifest import check_agreement
from etplugins.model_tests.parts import BASE, placed

_RELATIVE = ("size", "memory")


class QualifySection(Section):
    """The limits in a variant that is merged over its manifest."""

    def check(self, manifest: Manifest) -> Iterator[Problem]:
        """Yields the problems of its agreements."""
        given: Any = manifest.get("qualify", {})
        for path, agreement in placed(given.get("agreement", []), "qualify").items():
            yield from check_agreement(agreement, manifest, path)

    def normalized(self, manifest: Manifest) -> Manifest:
        """The manifest without the limits: no step reads them."""
        return cast("Manifest", {key: value for key, value in manifest.items() if key != "qualify"})


class VariantsSection(Section):
    """The programs that limits name, in a manifest with all of its variants, which may break its schema."""

    def check(self, manifest: Manifest) -> Iterator[Problem]:
        """Yields the problems that only the whole manifest shows."""
        if "qualify" in manifest:
            hint = "write it in the variant: `variants: {NAME: {qualify: {...}}}`"
            yield Problem("`qualify` belongs to a variant", ("qualify",), hint, at_key=True)
        variants = {name: each for name, each in _mapping(manifest, "variants").items() if isinstance(each, dict)}
        named = {name: dict(_named(variant, ("variants", name))) for name, variant in variants.items()}
        for name, places in named.items():
            for path, other in places.items():
                yield from _check(name, other, path, named)


def _mapping(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = data.get(key)
    return found if isinstance(found, dict) else {}


def _named(variant: dict[str, Any], path: DocumentPath) -> Iterator[tuple[DocumentPath, object]]:
    """The words after `of` in the limits of a variant, with their places."""
    for key in _RELATIVE:
        if "of" in (limit := _mapping(_mapping(variant, "qualify"), key)):
            yield (*path, "qualify", key, "of"), limit["of"]


def _check(
    name: str, other: object, path: DocumentPath, named: Mapping[str, Mapping[DocumentPath, object]]
) -> Iterator[Problem]:
    """Yields the problems of one word after `of`."""
    known = [BASE, *(each for each in named if each != name)]
    if not isinstance(other, str):
        hint = f"for example of: {BASE}"
        yield Problem("the name of a variant is written here, and no parameter", path, hint)
    elif other == name:
        yield Problem(f"`{name}` is compared with itself", path, did_you_mean(other, known))
    elif other not in known:
        yield Problem(f"there is no variant `{other}`", path, did_you_mean(other, known))
    elif other == BASE and BASE in named:
        message = f"`{BASE}` is the program without a variant, and a variant has this name, too"
        yield Problem(message, path, "give the variant another name")
    elif (circle := _circle(name, other, named)) is not None:
        names = " -> ".join(circle)
        hint = f"compare one of them with `{BASE}`, the program without a variant"
        yield Problem(f"these variants are compared in a circle: {names}", path, hint)


def _circle(name: str, other: str, named: Mapping[str, Mapping[DocumentPath, object]]) -> list[str] | None:
    """The way from one variant over another one back to it; None if there is none."""
    ways, seen = [[name, other]], {other}
    while ways:
        way = ways.pop()
        for after in named.get(way[-1], {}).values():
            if after == name:
                return [*way, name]
            if isinstance(after, str) and after not in seen:
                seen.add(after)
                ways.append([*way, after])
    return None
