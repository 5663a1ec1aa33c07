"""Formats what `etbuild inspect` finds in a `.pte` or `.ptd` as text."""

from __future__ import annotations

from etbuild.errors import printable
from etbuild.results import BlobWeights, NamedDataFile, ProgramFile, ProgramMethod, Value
from etkit.analysis import blob_names
from etkit.analysis.blob_names import NOT_KNOWN
from etkit.analysis.tables import Table, counted, size, table, value_text


def tables(facts: ProgramFile | NamedDataFile, known: BlobWeights = NOT_KNOWN) -> list[Table]:
    """The result of `program_file.describe` as tables for a terminal. The arguments are those of `text`."""
    head = Table(f"{facts['file']}  {size(facts['size'])}  sha256 {facts['sha256']}", (), [])
    if facts["kind"] == "named_data":
        return [head, Table("named data", ("key", "size"), _sizes(facts["named_data"], known), (1,))]
    found = [head]
    for name, method in facts["methods"].items():
        rows = _calls(method)
        rows += [(f"memory of arena {number}", size(count)) for number, count in enumerate(method["memory"], 1)]
        found.append(Table(_signature(name, method), ("calls of", "number"), rows, (1,)))
    found.append(Table("bytes in the program", ("blobs", "number", "size"), _kinds(facts), (2,)))
    if facts["external_keys"]:
        found.append(Table("expects in named data", (), [(key,) for key in facts["external_keys"]]))
    return found


def text(facts: ProgramFile | NamedDataFile, known: BlobWeights = NOT_KNOWN) -> str:
    """Formats the result of `program_file.describe` as a few tables.

    Args:
        facts: The result.
        known: The weights that blobs of named data are made of, as far as they are known.
    """
    head = f"{printable(facts['file'])}  {size(facts['size'])}  sha256 {facts['sha256']}"
    if facts["kind"] == "named_data":
        return "\n\n".join([head, table([("key", "size"), *_sizes(facts["named_data"], known)])])
    parts = [head, *(_method(name, method) for name, method in facts["methods"].items())]
    parts.append(table([("bytes in the program", "blobs", "size"), *_kinds(facts)]))
    if facts["external_keys"]:
        parts.append("expects in named data:\n" + "\n".join(f"  {printable(key)}" for key in facts["external_keys"]))
    return "\n\n".join(parts)


def _kinds(facts: ProgramFile) -> list[tuple[str, ...]]:
    """The number of blobs of each kind, and their size."""
    blobs = facts["bytes"]
    sizes = {
        "constants": blobs["constants"],
        "mutable": blobs["mutable"],
        "delegates": blobs["delegates"],
        "named data": list(blobs["named_data"].values()),
    }
    return [(kind, str(len(listed)), size(sum(listed))) for kind, listed in sizes.items()]


def _calls(method: ProgramMethod) -> list[tuple[str, str]]:
    """The number of calls of each backend and operator."""
    rows = [(f"delegate {backend}", str(count)) for backend, count in method["delegates"].items()]
    return rows + [(operator, str(count)) for operator, count in method["operators"].items()]


def _sizes(blobs: dict[str, int], known: BlobWeights) -> list[tuple[str, ...]]:
    named = ((blob_names.shown(key, known["named_data"]), count) for key, count in blobs.items())
    return [(name, size(count)) for name, count in named]


def _signature(name: str, method: ProgramMethod) -> str:
    inputs, outputs = (", ".join(map(_value, method[side])) for side in ("inputs", "outputs"))
    return f"{name}({inputs}) -> ({outputs})"


def _method(name: str, method: ProgramMethod) -> str:
    lines = [_signature(name, method), *(f"  {callee}: {counted(count, 'call')}" for callee, count in _calls(method))]
    if method["memory"]:
        lines.append(f"  memory: {', '.join(map(size, method['memory']))}")
    return "\n".join(map(printable, lines))


def _value(value: Value) -> str:
    order = f" with dimensions in memory as {value['dim_order']}" if "dim_order" in value else ""
    return value_text(value) + order
