"""`etbuild inspect`: shows what is in a `.pte` or `.ptd`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild.cli.options import add_parser
from etbuild.errors import InputError, check_current_directory

if TYPE_CHECKING:
    from etbuild.cli.shown_tables import Table
    from etbuild.results import NamedDataFile, ProgramFile


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs, "inspect", "show what is in a .pte or .ptd", "The file may come from any ExecuTorch build."
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a .pte or a .ptd")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print JSON")
    how.add_argument("--html", type=Path, metavar="PAGE", help="write a page about a .pte, one HTML file, to PAGE")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="OTHER",
        help="with --html: also show what differs from OTHER, a .pte, an index, or a directory that holds one index",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints the facts of a file."""
    from etbuild.cli.shown_tables import on_terminal, show
    from etbuild.processes.library_output import library_messages_off

    check_current_directory()
    if options.against is not None and options.html is None:
        raise InputError.of("--against needs --html", "`etbuild diff` prints the differences of two programs")
    with library_messages_off():
        from etbuild.analysis import inspection
        from etbuild.files import program_file

        if options.html is not None:
            return _write_page(options)
        facts = program_file.describe(options.file)
    if options.json:
        print(json.dumps(facts, indent=2, sort_keys=True))
    elif on_terminal():
        show(_tables(facts))
    else:
        print(inspection.text(facts))
    return 0


def _tables(facts: ProgramFile | NamedDataFile) -> list[Table]:
    from etbuild.analysis import inspection
    from etbuild.cli.shown_tables import Table

    return [Table(each.title, each.columns, each.rows, (len(each.columns) - 1,)) for each in inspection.tables(facts)]


def _write_page(options: argparse.Namespace) -> int:
    from etbuild.files import artifacts
    from etbuild.page import of_file

    page, directory = of_file.page(options.file, options.against), options.html.parent
    with artifacts.staging(directory) as staged:
        written = artifacts.write(staged, options.html.name, "page", lambda file: file.write(page))
        artifacts.publish([written], directory)
    return 0
