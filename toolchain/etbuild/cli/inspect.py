"""`etbuild inspect`: shows what is in a `.pte` or `.ptd`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from etbuild.cli.options import add_parser


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs, "inspect", "show what is in a .pte or .ptd", "The file may come from any ExecuTorch build."
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a .pte or a .ptd")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints the facts of a file."""
    from etbuild.processes.library_output import library_messages_off

    with library_messages_off():
        from etbuild.analysis import inspection
        from etbuild.files import program_file

        facts = program_file.describe(options.file)
    print(json.dumps(facts, indent=2, sort_keys=True) if options.json else inspection.text(facts))
    return 0
