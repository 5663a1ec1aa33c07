"""`etbuild diff`: shows the differences between two programs."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from etbuild.cli.options import add_flag, add_parser


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
    """Prints the differences. A terminal shows them in colours."""
    from etbuild.cli.terminal import GREEN, RED, paint
    from etbuild.errors import printable
    from etkit.inspection import program_diff

    differing = program_diff.compare(program_diff.facts(options.before), program_diff.facts(options.after))
    if options.json:
        print(json.dumps(program_diff.as_json(differing), indent=2))
    elif not differing:
        print("no differences")
    else:
        colours = {"added": GREEN, "removed": RED, "changed": "\033[33m"}
        for section, changes in program_diff.by_section(differing).items():
            print(f"{section}:")
            for where, what, kind in program_diff.rows(changes):
                print(paint(printable(f"  {where}: {what}"), colours[kind], sys.stdout))
    return 1 if differing and options.exit_code else 0
