"""Tables and facts as text for people."""

from __future__ import annotations

from collections.abc import Sequence

from etbuild.errors import printable
from etbuild.results import Value


def table(rows: Sequence[Sequence[str]]) -> str:
    """Aligns rows in columns. The first row is the heading. Cells may hold text from untrusted files: it is escaped."""
    rows = [tuple(map(printable, row)) for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)


def value_text(value: Value) -> str:
    """Formats an input or output, such as `float32[1, 3] or less`. The order of its dimensions is left out."""
    if "dtype" in value:
        return f"{value['dtype']}{value['shape']}" + (" or less" if value["dynamic"] else "")
    return f"{value['type']} {value['value']}" if value["value"] is not None else str(value["type"])


def size(count: int) -> str:
    """Formats a number of bytes, such as `1.2 MB`."""
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.2f} GB"


def duration(seconds: float) -> str:
    """Formats a time, such as `1.23 ms`."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}" if seconds < 1000 * scale else f"{seconds / scale:.0f} {unit}"
    return f"{seconds / 1e-6:.3g} µs"
