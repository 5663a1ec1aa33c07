"""Groups weights and blobs by module, for the treemaps of a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from etbuild.results import BlobSizes, BlobWeights, MethodGraph, Sharing
from etkit.inspection.json_text import is_digest

COLORS = 8  # the number of colours for groups in `page.css`


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
    """A weight: the parts of its name, which begins with its layer, its size in bytes, and a note."""

    path: tuple[str, ...]
    bytes: int
    note: str


def weights(graphs: Mapping[str, MethodGraph], sharing: Sharing) -> dict[str, Weight]:
    """The weights that methods read, by name. A name of only one part begins with the layer that reads it."""
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
    """The group of each weight: a module near the root. One with more than half of the bytes is split."""
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


def weights_of_blobs(inside: BlobSizes, known: BlobWeights) -> dict[str, Weight]:
    """The weights in a program itself, by name, for `modules`. They are used if the graphs do not name weights."""
    sizes = [(inside["named_data"].get(key, 0), names) for key, names in known["named_data"].items()]
    sizes += zip(inside["constants"], known["constants"], strict=False)  # without a report, there are no names
    return {names[0]: Weight(tuple(names[0].split(".")), count, "") for count, names in sizes if names and count}


def blobs(
    inside: BlobSizes, outside: Mapping[str, Mapping[str, int]], known: BlobWeights, groups: Mapping[str, str]
) -> list[Group]:
    """The blobs of a program and of its named data, by the modules of the weights that they are made of.

    Args:
        inside: The blobs of the program.
        outside: The blobs of its named data: their sizes by tag and key.
        known: The weights that blobs are made of, as far as they are known.
        groups: The result of `modules`; empty if no weight is known.
    """
    named = {"in the program": inside["named_data"], **{f"in `{tag}`": each for tag, each in sorted(outside.items())}}
    cells = []
    for where, of_file in named.items():
        for key, count in of_file.items():
            names = known["named_data"].get(key, [key] if key in groups else [])
            other = Cell(key[:12] if is_digest(key) else key, key, count, f"named data {where}")
            cells.append(_blob(names, groups, "named data", other))
    numbered = {
        "compiled by backends": ("delegate", inside["delegates"], []),
        "constants": ("constant", inside["constants"], known["constants"]),
        "initial values": ("state", inside["mutable"], []),
    }
    for group, (kind, sizes, all_names) in numbered.items():
        known_names = all_names if len(all_names) == len(sizes) else [[]] * len(sizes)  # a report of other bytes
        for number, (count, names) in enumerate(zip(sizes, known_names, strict=True)):
            other = Cell(f"{kind} {number}", f"{kind} {number}", count, "in the program")
            cells.append(_blob(names, groups, group, other))
    return _grouped([each for each in cells if each[1].bytes], groups)


def _blob(names: list[str], groups: Mapping[str, str], other: str, cell: Cell) -> tuple[str, Cell]:
    """A blob with its group, the module of its first weight. If no weight is known, `other` and `cell` are returned."""
    if not names:
        return other, cell
    group = _group(names[0], groups)
    listed = ", ".join(names[:_MOST_NAMED]) + (", ..." if names[_MOST_NAMED:] else "")
    note = f"{cell.note}, of {len(names)} weights: {listed}" if len(names) > 1 else cell.note
    return group, Cell(_below(group, names[0]), names[0], cell.bytes, note)


_MOST_NAMED = 8


def _group(name: str, groups: Mapping[str, str]) -> str:
    """The group of a weight. If lowering has replaced the weight, the group of its module."""
    if name in groups:
        return groups[name]
    around = [group for group in groups.values() if name.startswith(f"{group}.")]
    return max(around, key=len, default=name.partition(".")[0])


def _below(group: str, name: str) -> str:
    return name.removeprefix(f"{group}.")


def _grouped(cells: Iterable[tuple[str, Cell]], groups: Mapping[str, str]) -> list[Group]:
    """Groups of cells. A module has the same colour in each treemap. Neighbours by name have different colours."""
    by_group: dict[str, list[Cell]] = {}
    for group, cell in cells:
        by_group.setdefault(group, []).append(cell)
    colors = {name: number for number, name in enumerate(dict.fromkeys([*sorted(set(groups.values())), *by_group]))}
    return [
        Group(name, colors[name] % COLORS, sum(cell.bytes for cell in inside), inside)
        for name, inside in by_group.items()
    ]
