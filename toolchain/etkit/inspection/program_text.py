"""Formats what `etbuild inspect` finds in a `.pte` or `.ptd` as text."""

from __future__ import annotations

from etbuild.errors import counted, printable
from etbuild.folding import listed
from etbuild.results import NamedDataFile, ProgramFile, ProgramMethod, Refusal, Report, Value
from etkit.inspection import advice, blob_names
from etkit.inspection.details import Details, LargeTensor
from etkit.tables import size, table, value_text
from etplugins.quantize import reached

NO_DETAILS = Details()
_SOURCES = {"input": "an input", "state": "a state"}


def text(facts: ProgramFile | NamedDataFile, report: Report | None = None, details: Details = NO_DETAILS) -> str:
    """Formats the result of `program_file.describe` as a few tables.

    Args:
        facts: The result.
        report: The report of the build, if it is known.
        details: What else is known.
    """
    head = f"{printable(facts['file'])}  {size(facts['size'])}  sha256 {facts['sha256']}"
    if facts["kind"] == "named_data":
        return "\n\n".join([head, table([("key", "size"), *_sizes(facts["named_data"], report)])])
    methods = facts["methods"].items()
    parts = [head, *(_method(name, method, _refusals(name, report), details) for name, method in methods)]
    parts.append(table([("bytes in the program", "blobs", "size"), *_kinds(facts)]))
    if details.blobs:
        parts.append(table([("largest blobs", "size"), *((name, size(count)) for name, count in details.blobs)]))
    if details.twice:
        parts.append("\n".join(map(printable, details.twice)))
    if facts["external_keys"]:
        parts.append("expects in named data:\n" + "\n".join(f"  {printable(key)}" for key in facts["external_keys"]))
    if quantized := _quantization(report):
        parts.append("\n  ".join(map(printable, quantized)))
    return "\n\n".join(parts)


def _refusals(name: str, report: Report | None) -> list[Refusal]:
    method = report["methods"].get(name) if report is not None else None
    return method.get("why_not", []) if method is not None else []


def _quantization(report: Report | None) -> list[str]:
    """A line about what `quantize` has quantized, and a line for each weight that is still in floats."""
    found = report.get("quantization") if report is not None else None
    if found is None:
        return []
    rows = [f"{reached.counted(row)}: {row['why']}" for row in found["in_floats"]]
    return [reached.summary(found), *rows]


def _kinds(facts: ProgramFile) -> list[tuple[str, ...]]:
    """The number of blobs of each kind, and their size."""
    blobs = facts["bytes"]
    sizes = {
        "constants": blobs["constants"],
        "mutable": blobs["mutable"],
        "delegates": blobs["delegates"],
        "named data": list(blobs["named_data"].values()),
    }
    total = sum(map(sum, sizes.values()))
    rows = [(kind, str(len(listed)), size(sum(listed))) for kind, listed in sizes.items()]
    if total <= facts["size"]:
        rows.append(("instructions and gaps", "", size(facts["size"] - total)))
    else:  # a file may give one blob several keys
        rows.append(("counted more than once", "", f"-{size(total - facts['size'])}"))
    return [*rows, ("the file", "", size(facts["size"]))]


def _calls(method: ProgramMethod) -> list[tuple[str, str]]:
    """The number of calls of each backend and operator."""
    rows = [(f"delegate {backend}", str(count)) for backend, count in method["delegates"].items()]
    return rows + [(operator, str(count)) for operator, count in method["operators"].items()]


def _sizes(blobs: dict[str, int], report: Report | None) -> list[tuple[str, ...]]:
    known = blob_names.of_report(report)["named_data"]
    named = ((blob_names.shown(key, known), count) for key, count in blobs.items())
    return [(name, size(count)) for name, count in named]


def _signature(name: str, method: ProgramMethod) -> str:
    inputs, outputs = (", ".join(map(_value, method[side])) for side in ("inputs", "outputs"))
    return f"{name}({inputs}) -> ({outputs})"


def _method(name: str, method: ProgramMethod, refused: list[Refusal], details: Details) -> str:
    lines = [_signature(name, method), *(f"  {callee}: {counted(count, 'call')}" for callee, count in _calls(method))]
    if name in details.no_backend:
        lines.append("  the manifest asks for no backend: `partitioners: [xnnpack]` asks for one")
    if method["memory"]:
        lines.append(f"  planned memory: {', '.join(map(size, method['memory']))}")
        lines += map(_large, details.tensors.get(name, ()))
    lines += ["  not delegated:"] if refused else []
    for each in refused:
        layers = f" in {listed(each['layers'])}" if each["layers"] else ""
        lines.append(f"    {each['operator']}: {counted(each['calls'], 'call')}{layers}: {each['why_not']}")
        if write := advice.of(each["operator"], each["why_not"]):
            lines.append(f"      {write}")
    return "\n".join(map(printable, lines))


def _large(tensor: LargeTensor) -> str:
    """A tensor that makes the planned memory large, in words."""
    source = _SOURCES.get(tensor.of, f"the result of {tensor.of}")
    return f"    {size(tensor.bytes)}: {source}, {tensor.shape}"


def _value(value: Value) -> str:
    order = f" with dimensions in memory as {value['dim_order']}" if "dim_order" in value else ""
    return value_text(value) + order
