"""Formats what `etbuild inspect` finds in a `.pte` or `.ptd` as text."""

from __future__ import annotations

from etbuild.analysis.tables import size, table
from etbuild.errors import printable
from etbuild.results import NamedDataFile, ProgramFile, ProgramMethod, Value


def text(facts: ProgramFile | NamedDataFile) -> str:
    """Formats the result of `program_file.describe` as a few tables."""
    head = f"{printable(facts['file'])}  {size(facts['size'])}  sha256 {facts['sha256']}"
    if facts["kind"] == "named_data":
        return "\n\n".join([head, _blobs(facts["named_data"])])
    parts = [head, *(_method(name, method) for name, method in facts["methods"].items())]
    blobs = facts["bytes"]
    sizes = {
        "constants": blobs["constants"],
        "mutable": blobs["mutable"],
        "delegates": blobs["delegates"],
        "named data": list(blobs["named_data"].values()),
    }
    rows = [("bytes in the program", "blobs", "size")]
    rows += [(kind, str(len(listed)), size(sum(listed))) for kind, listed in sizes.items()]
    parts.append(table(rows))
    if facts["external_keys"]:
        parts.append("expects in named data:\n" + "\n".join(f"  {printable(key)}" for key in facts["external_keys"]))
    return "\n\n".join(parts)


def _blobs(blobs: dict[str, int]) -> str:
    return table([("key", "size"), *((key, size(count)) for key, count in blobs.items())])


def _method(name: str, method: ProgramMethod) -> str:
    inputs = ", ".join(map(_value, method["inputs"]))
    outputs = ", ".join(map(_value, method["outputs"]))
    lines = [f"{name}({inputs}) -> ({outputs})"]
    lines += [f"  delegate {backend}: {count} calls" for backend, count in method["delegates"].items()]
    lines += [f"  {operator}: {count} calls" for operator, count in method["operators"].items()]
    if method["memory"]:
        lines.append(f"  memory: {', '.join(map(size, method['memory']))}")
    return "\n".join(map(printable, lines))


def _value(value: Value) -> str:
    if "dtype" not in value:
        return f"{value['type']} {value['value']}" if value["value"] is not None else str(value["type"])
    return f"{value['dtype']}{value['shape']}" + (" or less" if value["dynamic"] else "")
