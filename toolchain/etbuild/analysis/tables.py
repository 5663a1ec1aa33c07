"""Formats tables and sizes as text."""

from __future__ import annotations

from collections.abc import Sequence

from etbuild.errors import printable


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Aligns rows in columns. The first row is the heading. Cells may hold text from untrusted files: it is escaped."""
    rows = [tuple(map(printable, row)) for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)


def size(count: int) -> str:
    """Formats a number of bytes, such as `1.2 MB`."""
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.2f} GB"
