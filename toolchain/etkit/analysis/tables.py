"""Tables for people, and numbers of bytes as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from etbuild.errors import printable
from etbuild.results import Value


@dataclass(frozen=True)
class Table:
    """A table. Its cells may hold text from untrusted files: it is escaped.

    Attributes:
        title: What stands above it.
        columns: The headings of the columns; empty for a table without a heading.
        rows: The rows.
        numbers: The columns that hold numbers, which are aligned to the right.
        styles: For each row, how it is shown, such as `green`; empty if no row has a style.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[int] = ()
    styles: Sequence[str] = ()


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
