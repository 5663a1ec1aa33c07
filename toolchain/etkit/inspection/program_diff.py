"""Compares two programs: the differences in methods, sizes and blobs, and the first difference between two files."""

from __future__ import annotations

import dataclasses
import enum
import io
import json
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from etbuild.errors import InputError, check_current_directory, counted, format_path
from etbuild.files.json_diff import ABSENT, Change, changes
from etbuild.results import ArtifactFacts, Index, Report
from etkit.find_index import index_beside, listed_report, read_index, report_beside
from etkit.inspection import blob_names
from etkit.inspection.json_text import show
from etkit.tables import size, value_text

Facts = dict[str, Any]
TOTAL = "bytes of .pte and .ptd"


def facts(path: Path) -> Facts:
    """Collects what `compare` needs about a program, about named data, or about a build.

    Args:
        path: A `.pte`, a `.ptd`, an index, or a directory with one index.

    Returns:
        Sections by name. `of` says what kind of thing the path is. `names` has the weights that its blobs are made of.

    Raises:
        InputError: The path is something else, or the file is damaged.
    """
    if path.suffix in (".pte", ".ptd"):
        return _of_file(path)
    index_path, index = read_index(path)
    return of_build(index, listed_report(index_path, index))


def _of_file(path: Path) -> Facts:
    from etbuild.surroundings.library_output import library_messages_off

    check_current_directory()
    with library_messages_off():
        from etbuild.files import program_file

        described = program_file.describe(path)
    file = {"size": described["size"], "sha256": described["sha256"]}
    names = blob_names.of_report(report_beside(path, described["sha256"]))
    beside = index_beside(path, described["sha256"])
    total = None if beside is None else _size_of(beside[1])
    if described["kind"] == "named_data":
        blobs = {"named data": described["named_data"]}
        return {"of": "named data", "names": names, "artifacts": {"the file": file}, "blobs": blobs}
    if total is None and not described["external_keys"]:
        total = described["size"]
    return {
        "of": "a program",
        "names": names,
        **_total(total),
        "artifacts": {"the file": file},
        "methods": {name: _method(method) for name, method in described["methods"].items()},
        "blobs": _blobs(described["bytes"]),
        "external names": dict.fromkeys(described["external_keys"], "expected"),
    }


def of_build(index: Index, report: Report | None) -> Facts:
    """Like `facts`, for a build, from its index and its report."""
    sections: Facts = {
        "of": "a build",
        **_total(_size_of(index)),
        "artifacts": _artifacts(index["artifacts"]),
        "methods": {name: {} for name in index["methods"]},
        "constant methods": index["inputs"]["plan"]["constant_methods"],
        "weights": index["tensors"],
    }
    if report is not None:
        sections["methods"] = {name: _method(method) for name, method in report["methods"].items()}
        sections["blobs"] = _blobs(report["bytes"])
        sections["names"] = blob_names.of_report(report)
    return sections


def _total(size: int | None) -> Facts:
    """The section with the total size; empty if it is unknown."""
    return {} if size is None else {"total": {TOTAL: size}}


def _size_of(index: Index) -> int:
    return sum(each["size"] for each in index["artifacts"] if each["kind"] in ("program", "named_data"))


def _artifacts(listed: list[ArtifactFacts]) -> Facts:
    """Returns artifacts by name, but shards by number, because the name of a shard changes with its content."""
    by_name: Facts = {}
    for entry in listed:
        directory, separator, _ = entry["file"].partition("/") if entry["kind"] == "named_data" else ("", "", "")
        number = sum(name.startswith(f"{directory}/") for name in by_name)
        name = f"{directory}/{number}" if separator else entry["file"]
        by_name[name] = {key: entry[key] for key in ("size", "sha256")}
    return by_name


def _method(method: Mapping[str, Any]) -> Facts:
    """The compared parts of a method of a program or of a report."""
    known = {key: method[key] for key in ("delegates", "operators", "memory") if key in method}
    return {**known, **{side: list(map(value_text, method[side])) for side in ("inputs", "outputs")}}


def _blobs(sizes: Mapping[str, Any]) -> Facts:
    """Returns the sizes of named blobs in the `bytes` of a program or a report; for blobs without names, their number
    and their bytes."""
    by_name: Facts = {}
    for kind, blobs in sizes.items():
        if kind == "external":
            by_name.update({f"named data `{tag}`": keys for tag, keys in blobs.items()})
        elif isinstance(blobs, dict):
            by_name["named data in the program" if kind == "named_data" else kind] = blobs
        else:
            by_name[kind] = {"number": len(blobs), "bytes": sum(blobs)}
    return by_name


def compare(before: Facts, after: Facts) -> list[Change]:
    """Returns the differences, in the order of the sections.

    Raises:
        InputError: The two are of different kinds.
    """
    if before["of"] != after["of"]:
        message = f"{before['of']} cannot be compared with {after['of']}"
        raise InputError.of(message, "name two files of one kind: .pte, .ptd, or indexes")
    names = {
        key: each for side in (before, after) if "names" in side for key, each in side["names"]["named_data"].items()
    }
    differing: list[Change] = []
    for section in {**before, **after}:
        if section == "names":
            continue
        if section == "total" and not (section in before and section in after):
            continue  # the files of one of the two are unknown
        of_section = changes(before.get(section, {}), after.get(section, {}), (section,))
        differing += (_named(change, names) if section == "blobs" else change for change in of_section)
    return differing


@dataclasses.dataclass(frozen=True)
class BlobChange(Change):
    """A change of a blob.

    Attributes:
        weights: The names of the weights that it is made of. None if no report beside the files lists them.
    """

    weights: list[str] | None = None


def _named(change: Change, names: Mapping[str, list[str]]) -> BlobChange:
    return BlobChange(change.path, change.before, change.after, names.get(str(change.path[-1])))


def _with_name(change: Change) -> Change:
    """A change for people: the path of a blob also has the name of its weight."""
    if not isinstance(change, BlobChange) or not change.weights:
        return change
    *path, key = change.path
    return dataclasses.replace(change, path=(*path, blob_names.shown(str(key), {str(key): change.weights})))


def by_section(differing: list[Change]) -> dict[str, list[Change]]:
    """Returns the differences of each section, by its name."""
    sections: dict[str, list[Change]] = {}
    for change in differing:
        sections.setdefault(str(change.path[0]), []).append(change)
    return sections


def text(differing: list[Change]) -> Iterator[str]:
    """Yields the differences as lines, under a heading for each section."""
    for section, changes_of_it in by_section(differing).items():
        yield f"{section}:"
        yield from (f"  {where}: {what}" for where, what, _ in rows(changes_of_it))


def rows(changes_of_section: list[Change]) -> list[tuple[str, str, str]]:
    """The differences of a section in words: where each is, what it is, and its kind.

    Blobs without names have one row for added ones, and one for removed ones. Blobs with only other content have one.
    """
    found: list[tuple[str, str, str]] = []
    by_name: dict[tuple[str, str], list[Change]] = {}
    for change in map(_with_name, changes_of_section):
        section, *path = change.path
        keyed = blob_names.split(str(path[-1])) if section == "blobs" and change.kind != "changed" else None
        if keyed is None:
            found.append((*parts(change), change.kind))
        else:
            by_name.setdefault((" ".join(map(str, path[:-1])), keyed[0]), []).append(change)
    contents: dict[str, list[tuple[str, int]]] = {}
    for (where, name), of_name in by_name.items():
        if name:
            other, resized = _matched(of_name)
            contents.setdefault(where, []).extend((name, count) for count in other)
            found += [(f"{where} {name}", _sizes(*sizes), Change((), *sizes).kind) for sizes in resized]
        else:
            found += _folded(where, of_name)
    for where, blobs in contents.items():
        if blobs:
            listed = ", ".join(name for name, _ in blobs[:_MOST_NAMED]) + (", ..." if blobs[_MOST_NAMED:] else "")
            what = (
                f"{counted(len(blobs), 'blob')} with other content, {size(sum(count for _, count in blobs))}: {listed}"
            )
            found.append((where, what, "changed"))
    return found


_MOST_NAMED = 8


def _folded(where: str, blobs: list[Change]) -> Iterator[tuple[str, str, str]]:
    """A row for all blobs that were added, and one for all that were removed."""
    for kind in dict.fromkeys(change.kind for change in blobs):
        sizes = [_count(each.before) + _count(each.after) for each in blobs if each.kind == kind]
        yield where, f"{counted(len(sizes), 'blob')} {kind}, {size(sum(sizes))}", kind


def _matched(blobs: list[Change]) -> tuple[list[int], list[tuple[Any, Any]]]:
    """The changes of one weight's blobs: sizes with only other content, and pairs of sizes before and after."""
    before = sorted(each.before for each in blobs if each.kind == "removed")
    after = sorted(each.after for each in blobs if each.kind == "added")
    other = sorted((Counter(before) & Counter(after)).elements())
    left = [sorted((Counter(sizes) - Counter(other)).elements()) for sizes in (before, after)]
    return other, list(zip_longest(*left, fillvalue=ABSENT))


def parts(change: Change) -> tuple[str, str]:
    """A difference in words: where it is in its section, and what it is."""
    section, *path = change.path
    where = _method_part(path) if section == "methods" else " ".join(map(str, path))
    if section in ("total", "artifacts", "blobs") and path[-1] not in ("sha256", "number") and _whole_numbers(change):
        return where, _sizes(change.before, change.after)
    if section == "methods" and _whole_numbers(change):
        return where, f"{_count(change.before)} -> {_count(change.after)}"
    if change.kind == "changed":
        return where, f"{show(change.before)} -> {show(change.after)}"
    value = change.after if change.kind == "added" else change.before
    return where, change.kind + (f" ({show(value)})" if isinstance(value, (int, float, list)) else "")


def _method_part(path: list[Any]) -> str:
    """Returns the location of a change, such as `forward: XnnpackBackend aten::linear` or `forward: operator
    aten::sin.out`."""
    method, *rest = path
    if rest[:2] == ["operators", "delegated"] or rest[:2] == ["operators", "fallback"]:
        rest = rest[2:] if rest[1] == "delegated" else rest[1:]
    elif rest[:1] in (["operators"], ["delegates"]):
        rest = [rest[0][:-1], *rest[1:]]
    return f"{method}: {' '.join(map(str, rest))}" if rest else str(method)


def _whole_numbers(change: Change) -> bool:
    return all(value is ABSENT or isinstance(value, int) for value in (change.before, change.after))


def _count(value: Any) -> int:
    return 0 if value is ABSENT else int(value)


def _sizes(before: Any, after: Any) -> str:
    if before is ABSENT:
        return f"added, {size(after)}"
    if after is ABSENT:
        return f"removed, {size(before)}"
    return f"{size(before)} -> {size(after)} ({after - before:+,} bytes)"


def first_difference(before: Path, after: Path) -> str | None:
    """Finds the first difference between two outputs of the same kind.

    Args:
        before: A file or a directory.
        after: The file or directory that should be equal.

    Returns:
        The file, section and field. None if the outputs are equal.
    """
    if not before.is_dir():
        return _first_in_files(before.name, before, after)
    names = [_files_below(directory) for directory in (before, after)]
    for name in sorted(names[0] ^ names[1]):
        which = "first" if name in names[0] else "second"
        return f"`{before.name}/{name}`: only the {which} build made it"
    differing = (_first_in_files(f"{before.name}/{name}", before / name, after / name) for name in sorted(names[0]))
    return next((difference for difference in differing if difference), None)


def _files_below(directory: Path) -> set[str]:
    """The names of the files. Empty directories do not count: Bazel does not keep them."""
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}


def _first_in_files(name: str, before: Path, after: Path) -> str | None:
    if not after.exists():
        return f"`{name}`: it was not made"
    old, new = before.read_bytes(), after.read_bytes()
    return None if old == new else f"`{name}`: {_first_in_file(before.suffix, old, new)}"


def _first_in_file(suffix: str, old: bytes, new: bytes) -> str:
    parsers: dict[str, Callable[[bytes], Any]] = {
        ".json": json.loads,
        ".pt2": _archive_tree,
        ".pte": _program_tree,
        ".ptd": _named_data_tree,
    }
    try:
        trees = [parsers[suffix](data) for data in (old, new)]
        change = next(changes(*trees), None)
    except Exception:  # noqa: BLE001 - a damaged file is compared byte by byte, and parsers have no common base of their errors
        change = None
    if change is None:
        return _first_byte(old, new)
    where = format_path(change.path)
    if isinstance(change.before, _Bytes) and isinstance(change.after, _Bytes):
        return f"{where}: {_first_byte(change.before.content, change.after.content)}"
    return f"{where}: {show(change.before, change.path)} and {show(change.after, change.path)}"


def _first_byte(old: bytes, new: bytes) -> str:
    offset = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    sizes = f"of {len(old):,}" if len(old) == len(new) else f"of {len(old):,} and {len(new):,}"
    return f"byte {offset:,} {sizes}"


@dataclasses.dataclass(frozen=True)
class _Bytes:
    """The bytes of a blob, as a leaf of a tree."""

    content: bytes


def _program_tree(data: bytes) -> Any:
    from etbuild.files.program_file import read_program

    return _tree(read_program(data))


def _named_data_tree(data: bytes) -> Any:
    from etbuild.files.program_file import named_data_blobs

    return {key: _Bytes(content) for key, content in named_data_blobs(data).items()}


def _archive_tree(data: bytes) -> Any:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    return {name: json.loads(file) if name.endswith(".json") else _Bytes(file) for name, file in files.items()}


def _tree(value: Any) -> Any:
    """Converts ExecuTorch's data classes to mappings."""
    if isinstance(value, enum.Enum):
        return value.name
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _tree(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): _tree(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_tree(item) for item in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _Bytes(bytes(value))
    return value


def as_json(differing: list[Change]) -> list[dict[str, Any]]:
    """Returns the differences as JSON data."""
    return [
        {
            "path": list(change.path),
            "kind": change.kind,
            "before": None if change.before is ABSENT else change.before,
            "after": None if change.after is ABSENT else change.after,
            **({"weights": change.weights} if isinstance(change, BlobChange) and change.weights else {}),
        }
        for change in differing
    ]
