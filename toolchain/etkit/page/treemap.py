"""Groups weights and blobs by module, for the treemaps of a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from etbuild.files.json_diff import is_digest
from etbuild.results import BlobSizes, MethodGraph, Sharing

COLORS = 8  # of groups, in `page.css`


@dataclass(frozen=True)
class Cell:
    """A weight or a blob.

    Attributes:
        label: Its name in its group.
        name: Its whole name.
        bytes: Its size.
        note: What else is known about it.
    """

    label: str
    name: str
    bytes: int
    note: str


@dataclass(frozen=True)
class Group:
    """Cells of one colour.

    Attributes:
        name: The module, or the kind of blobs.
        color: The number of the colour.
        bytes: The size of all cells.
        cells: The cells.
    """

    name: str
    color: int
    bytes: int
    cells: list[Cell]


@dataclass(frozen=True)
class Weight:
    """A weight: the parts of its name with its layer before it, its size in bytes, and a note."""

    path: tuple[str, ...]
    bytes: int
    note: str


def weights(graphs: Mapping[str, MethodGraph], sharing: Sharing) -> dict[str, Weight]:
    """The weights that methods read, by name. A name without parts gets the layer that reads it."""
    readers: dict[str, list[str]] = {}
    sizes: dict[str, int] = {}
    layers: dict[str, str] = {}
    for method, graph in sorted(graphs.items()):
        for node in graph["nodes"]:
            for number in node.get("weights", ()):
                name = graph["weights"][number]["name"]
                sizes[name] = graph["weights"][number]["bytes"]
                layers.setdefault(name, "" if "." in name else node.get("layer", ""))
                if method not in readers.setdefault(name, []):
                    readers[name].append(method)
    copies = {each["weight"]: f"stored {each['copies']} times, " for each in sharing["duplicates"]}
    return {
        name: Weight(
            (*filter(None, layers[name].split(".")), *name.split(".")),
            sizes[name],
            f"{copies.get(name, '')}read by {' and '.join(readers[name])}",
        )
        for name in sorted(sizes)
    }


def modules(of: Mapping[str, Weight]) -> dict[str, str]:
    """The group of each weight: a module near the root. One with more than half of the bytes is cut into its own."""
    half = sum(weight.bytes for weight in of.values()) / 2
    found: dict[str, str] = {}
    pending = [(list(of), 1)]
    while pending:
        names, depth = pending.pop()
        groups: dict[str, list[str]] = {}
        for name in names:
            path = of[name].path
            groups.setdefault(".".join(path[:-1][:depth] or path), []).append(name)
        for group, inside in groups.items():
            large = sum(of[name].bytes for name in inside) > half
            if large and any(len(of[name].path) - 1 > depth for name in inside):
                pending.append((inside, depth + 1))
            else:
                found.update(dict.fromkeys(inside, group))
    return found


def fitting(named_data: Mapping[str, Mapping[str, int]], of: Mapping[str, Weight]) -> dict[str, list[str]]:
    """The weights whose size is that of a blob, by the digest that is the key of the blob.

    Backends do not say which weight is in a blob, so that its size decides. A packed blob can fit none.
    """
    by_size: dict[int, list[str]] = {}
    for name, weight in of.items():
        by_size.setdefault(weight.bytes, []).append(name)
    sizes = {key: count for of_file in named_data.values() for key, count in of_file.items() if is_digest(key)}
    return {key: by_size[count] for key, count in sizes.items() if count in by_size}


def layers(of: Mapping[str, Weight], groups: Mapping[str, str]) -> list[Group]:
    """The weights by module.

    Args:
        of: The weights.
        groups: The result of `modules`.
    """
    cells = [
        (groups[name], Cell(_below(groups[name], ".".join(weight.path)), name, weight.bytes, weight.note))
        for name, weight in of.items()
    ]
    return _grouped(cells, groups)


def blobs(
    inside: BlobSizes,
    outside: Mapping[str, Mapping[str, int]],
    held: Mapping[str, list[str]],
    groups: Mapping[str, str],
) -> list[Group]:
    """The blobs of a program and of its named data, by the modules of the weights that they hold.

    Args:
        inside: The blobs of the program.
        outside: The blobs of its named data: their sizes by tag and key.
        held: The result of `fitting`; empty if no weight is known.
        groups: The result of `modules`; empty if no weight is known.
    """
    named = {"in the program": inside["named_data"], **{f"in `{tag}`": each for tag, each in sorted(outside.items())}}
    cells = [
        _blob(key, count, where, held.get(key, [key]), groups)
        for where, of_file in named.items()
        for key, count in of_file.items()
    ]
    numbered = {
        "compiled by backends": ("delegate", inside["delegates"]),
        "constants": ("constant", inside["constants"]),
        "initial values": ("state", inside["mutable"]),
    }
    for group, (kind, sizes) in numbered.items():
        cells += [
            (group, Cell(f"{kind} {number}", f"{kind} {number}", count, "in the program"))
            for number, count in enumerate(sizes)
        ]
    return _grouped([each for each in cells if each[1].bytes], groups)


def _blob(key: str, count: int, where: str, names: list[str], groups: Mapping[str, str]) -> tuple[str, Cell]:
    """A blob of named data, and its group."""
    if not all(name in groups for name in names):
        return "named data", Cell(key[:12] if is_digest(key) else key, key, count, f"named data {where}")
    found = {groups[name] for name in names}
    group = found.pop() if len(found) == 1 else "several modules"
    if len(names) == 1:
        note = f"named data {where}" + (", named by its size" if is_digest(key) else "")
        return group, Cell(_below(group, names[0]), names[0], count, note)
    note = f"named data {where}; the size fits {len(names)} weights: {', '.join(names[:_MOST_NAMED])}"
    common = _common(names) or group
    return group, Cell(_below(group, common), f"in {common}", count, note + (", ..." if names[_MOST_NAMED:] else ""))


_MOST_NAMED = 8


def _common(names: list[str]) -> str:
    """The module that has all of these weights; empty for the root."""
    common: list[str] = []
    for parts in zip(*(name.split(".") for name in names), strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common)


def _below(group: str, name: str) -> str:
    return name.removeprefix(f"{group}.")


def _grouped(cells: Iterable[tuple[str, Cell]], groups: Mapping[str, str]) -> list[Group]:
    """Groups of cells. A module has the same colour in each treemap, and neighbours by name have different ones."""
    by_group: dict[str, list[Cell]] = {}
    for group, cell in cells:
        by_group.setdefault(group, []).append(cell)
    colors = {name: number for number, name in enumerate(dict.fromkeys([*sorted(set(groups.values())), *by_group]))}
    return [
        Group(name, colors[name] % COLORS, sum(cell.bytes for cell in inside), inside)
        for name, inside in by_group.items()
    ]
