"""Tables for people, and facts as text. A terminal shows tables with colours and in its width."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from etbuild.errors import printable
from etbuild.results import Value

COLOURS = {"added": "green", "removed": "red", "changed": "yellow"}


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


def print_tables(tables: Sequence[Table], text: str) -> None:
    """Prints tables on a terminal, and elsewhere the same as plain text."""
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        show(tables)
    else:
        print(text)


def show(tables: Sequence[Table]) -> None:
    """Prints tables on the terminal. A cell that is too wide for it is continued on the next line."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as Shown
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False)
    for number, each in enumerate(tables):
        if number:
            console.print()
        console.print(Text(printable(each.title), style="bold", overflow="fold"))
        if not each.rows:
            continue
        width = max(len(each.columns), *map(len, each.rows))
        shown = Shown(box=box.SIMPLE_HEAD, show_header=bool(each.columns), header_style="dim", pad_edge=False)
        for column in range(width):
            heading = each.columns[column] if each.columns else ""
            shown.add_column(heading, justify="right" if column in each.numbers else "left", overflow="fold")
        for row, style in zip(each.rows, [*each.styles, *[""] * len(each.rows)], strict=False):
            shown.add_row(*(Text(printable(cell)) for cell in row), style=style or None)
        console.print(shown)


def counted(number: int | str, what: str) -> str:
    """A number of things, such as `1 operator` or `2 operators`."""
    return f"{number} {what}" if str(number) == "1" else f"{number} {what}s"


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
