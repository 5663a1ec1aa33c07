"""`etbuild diff`: shows the differences between two programs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild.cli.options import add_flag, add_parser

if TYPE_CHECKING:
    from etbuild.files.json_diff import Change
    from etkit.analysis.tables import Table


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(verbs, "diff", "show what differs between two programs")
    for name in ("before", "after"):
        parser.add_argument(
            name, type=Path, metavar=name.upper(), help="a .pte, a .ptd, an index, or a directory that holds one index"
        )
    add_flag(parser, "--exit-code", "exit with code 1 if the two differ")
    add_flag(parser, "--json", "print JSON")


def run(options: argparse.Namespace) -> int:
    """Prints the differences."""
    from etbuild.errors import printable
    from etkit.analysis import program_diff
    from etkit.analysis.tables import print_tables

    differing = program_diff.compare(program_diff.facts(options.before), program_diff.facts(options.after))
    if options.json:
        print(json.dumps(program_diff.as_json(differing), indent=2))
    elif differing:
        print_tables(_tables(differing), "\n".join(map(printable, program_diff.text(differing))))
    else:
        print("no differences")
    return 1 if differing and options.exit_code else 0


def _tables(differing: list[Change]) -> list[Table]:
    """The differences, a table for each section."""
    from etkit.analysis.program_diff import by_section, rows
    from etkit.analysis.tables import COLOURS, Table

    tables = []
    for title, changes in by_section(differing).items():
        shown = rows(changes)
        cells = [(where, what) for where, what, _ in shown]
        tables.append(Table(title, ("what", "difference"), cells, (), [COLOURS[kind] for *_, kind in shown]))
    return tables
