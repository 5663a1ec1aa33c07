"""Shows tables on a terminal, with colours and in its width. Elsewhere commands print plain text."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from etbuild.errors import printable
from etkit.analysis.tables import Table

COLOURS = {"added": "green", "removed": "red", "changed": "yellow"}


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
    for number, table in enumerate(tables):
        if number:
            console.print()
        console.print(Text(printable(table.title), style="bold", overflow="fold"))
        if not table.rows:
            continue
        width = max(len(table.columns), *map(len, table.rows))
        shown = Shown(box=box.SIMPLE_HEAD, show_header=bool(table.columns), header_style="dim", pad_edge=False)
        for column in range(width):
            heading = table.columns[column] if table.columns else ""
            shown.add_column(heading, justify="right" if column in table.numbers else "left", overflow="fold")
        for row, style in zip(table.rows, [*table.styles, *[""] * len(table.rows)], strict=False):
            shown.add_row(*(Text(printable(cell)) for cell in row), style=style or None)
        console.print(shown)
