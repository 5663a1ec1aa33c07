"""The sections `for` and `metadata` of a manifest: what can be checked before a build."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from etbuild.errors import DocumentPath, Problem, counted, did_you_mean, unknown
from etbuild.manifest import plugin_sections
from etbuild.manifest.plugin_sections import Section
from etbuild.manifest.sections import Manifest
from etplugins.applications import metadata, tables
from etplugins.applications.parts import CHANNELS
from etplugins.applications.sections import Described

Entries = list[tuple[DocumentPath, str]]


def wanted(manifest: Manifest) -> Entries:
    """The kinds in a manifest, each with its place."""
    written: Any = manifest.get("for", [])
    entries = written if isinstance(written, list) else [written]
    places: list[DocumentPath] = [("for", index) for index in range(len(entries))]
    if not isinstance(written, list):
        places = [("for",)]
    return [
        (place, entry) if isinstance(entry, str) else ((*place, "kind"), entry["kind"])
        for place, entry in zip(places, entries, strict=True)
    ]


class ApplicationsSection(Section):
    """The kinds of applications that must load the program."""

    def check(self, manifest: Manifest) -> Iterator[Problem]:
        """Yields unknown kinds, and what a kind cannot load whatever the model is."""
        known = tables.names()
        seen: set[str] = set()
        for path, name in wanted(manifest):
            if name not in known:
                hint = did_you_mean(name, known)
                yield Problem(f"`{name}` is no kind of application that is known", path, hint)
            elif name in seen:
                yield Problem(f"`{name}` is there twice", path, "leave one of them out")
            else:
                yield from _named_data(tables.kind(name), manifest)
            seen.add(name)

    def normalized(self, manifest: Manifest) -> Manifest:
        """The manifest with the kinds in one order."""
        written: Any = manifest.get("for", [])
        entries = written if isinstance(written, list) else [written]
        ordered = sorted(entries, key=lambda entry: entry if isinstance(entry, str) else entry["kind"])
        return cast("Manifest", {**manifest, "for": ordered})


def _named_data(kind: tables.Kind, manifest: Manifest) -> Iterator[Problem]:
    """The tags of a manifest whose files a kind cannot load."""
    lack = kind.named_data
    if lack is None or (lack.with_runner and "runner" in manifest):
        return
    places: list[DocumentPath] = [("named_data", tag) for tag in manifest.get("named_data", {})]
    places += [("model", "adapters", name) for name in manifest.get("model", {}).get("adapters", {})]
    for path in places[lack.most :]:
        of = "the tag" if path[0] == "named_data" else "the adapter"
        message = f"`for: {kind.name}`: {kind.library} cannot load the file of {of} `{path[-1]}`: {lack.what}"
        yield Problem(message, path, lack.hint, at_key=True)


class MetadataSection(Section):
    """Facts about the program for people, and what its inputs and outputs mean."""

    def check(self, manifest: Manifest) -> Iterator[Problem]:
        """Yields the problems that a schema cannot find."""
        stated: Any = manifest.get("metadata", {})
        yield from metadata.check(stated, manifest.get("model", {}), plugin_sections.weights(manifest))
        for side in ("inputs", "outputs"):
            yield from _check_side(stated.get(side, []), side, manifest)


def by_method(described: Any, methods: Any) -> dict[str, list[Described]]:
    """What `metadata.inputs` or `outputs` says of each method. A list is for the only method."""
    if isinstance(described, dict):
        return described
    return {next(iter(methods)): described} if described and len(methods) == 1 else {}


def _check_side(described: Any, side: str, manifest: Manifest) -> Iterator[Problem]:
    place: DocumentPath = ("metadata", side)
    methods = manifest.get("methods", {})
    if isinstance(described, list) and described and len(methods) != 1:
        example = next(iter(methods), "forward")
        message = f"the program has {len(methods)} methods: which one has these {side}?"
        yield Problem(message, place, f"write them by method: `{side}: {{{example}: [{{name: ...}}]}}`")
        return
    for name, hint in unknown(described if isinstance(described, dict) else (), methods):
        yield Problem(f"there is no method `{name}`", (*place, name), hint, at_key=True)
    for method, entries in by_method(described, methods).items():
        path = (*place, method) if isinstance(described, dict) else place
        seen: set[str] = set()
        for index, entry in enumerate(entries):
            if entry["name"] in seen:
                yield Problem(f"two of the {side} are called `{entry['name']}`", (*path, index, "name"))
            seen.add(entry["name"])
            yield from _check_entry(entry, (*path, index))
        if side == "inputs" and method in methods and entries:
            yield from _check_samples(entries[0], methods[method].get("samples"), (*path, 0))


def _check_entry(entry: Described, path: DocumentPath) -> Iterator[Problem]:
    layout, colors = entry.get("layout"), entry.get("colors")
    if layout is not None and len({*layout}) < len(layout):
        yield Problem(f"`{layout}` has a letter twice", (*path, "layout"), "write one letter for each dimension")
    if colors is not None and "c" not in (layout or ""):
        message = "`colors` needs a `layout` with the letter `c`" + (f", and `{layout}` has none" if layout else "")
        yield Problem(message, (*path, "colors"), "for example layout: nchw", at_key=True)
    for key in ("mean", "deviation"):
        numbers = cast("dict[str, list[float]]", entry).get(key)
        if numbers is not None and colors is not None and len(numbers) not in (1, CHANNELS[colors]):
            hint = "write one number for all channels, or one for each"
            message = f"{counted(len(numbers), 'number')} for {counted(CHANNELS[colors], 'channel')}"
            yield Problem(message, (*path, key), hint)
    if 0 in entry.get("deviation", []):
        yield Problem("a deviation is 0", (*path, "deviation"), "pixels are divided by it")
    limits = entry.get("range")
    if limits is not None and limits[0] >= limits[1]:
        yield Problem(
            f"{limits[0]} is not smaller than {limits[1]}", (*path, "range"), "the smallest value comes first"
        )


def _check_samples(entry: Described, samples: Any, path: DocumentPath) -> Iterator[Problem]:
    """Compares what an input means with how the samples of its method are read."""
    if not isinstance(samples, dict):
        return
    image, sound = samples.get("image"), samples.get("sound")
    if image is not None:
        read: dict[str, Any] = {"colors": "rgb", "layout": "nchw", "mean": [0], "deviation": [1], **image}
        said: dict[str, Any] = {**entry}
        for key in ("colors", "layout", "mean", "deviation"):
            if key in said and _spread(said[key]) != _spread(read[key]):
                message = f"the samples of the method are read with `{key}: {_shown(read[key])}`"
                yield Problem(message, (*path, key), f"write the same here and in `samples`: {_shown(read[key])}")
        pairs = [*zip(_three(read["mean"]), _three(read["deviation"]), strict=False)]
        ends = [(pixel - mean) / deviation for pixel in (0, 1) for mean, deviation in pairs if deviation]
        yield from _check_range(entry, min(ends, default=0), max(ends, default=1), path)
    elif sound is not None:
        yield from _check_range(entry, -1, 1, path)


def _check_range(entry: Described, low: float, high: float, path: DocumentPath) -> Iterator[Problem]:
    """Compares a range with the smallest and the largest number that samples can have. The last digits do not count."""
    if (limits := entry.get("range")) is not None:
        near = 1e-3 * (high - low)
        if low < limits[0] - near or high > limits[1] + near:
            message = f"the samples of the method reach from {low:.4g} to {high:.4g}"
            yield Problem(
                message, (*path, "range"), "write a range that holds them, or read the samples in another way"
            )


def _spread(value: Any) -> Any:
    """A value to compare: one number for all channels is a number for each."""
    return _three(value) if isinstance(value, list) else value


def _three(numbers: list[float]) -> list[float]:
    return [float(number) for number in (numbers * 3 if len(numbers) == 1 else numbers)]


def _shown(value: Any) -> str:
    return f"[{', '.join(f'{number:g}' for number in value)}]" if isinstance(value, list) else str(value)
