"""`etbuild apply`: brings a directory of programs up to date with a delta."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from etbuild.cli.options import add_flag, add_parser, add_path
from etbuild.errors import printable


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "apply",
        "bring a directory of programs up to date with a delta",
        "Compares every file with its digest, before and after. Patches need the extra `delta`.",
    )
    add_path(parser, "DELTA", "the directory that `etbuild delta -o` wrote")
    parser.add_argument("directory", type=Path, metavar="DIR", help="the directory of the programs")
    add_flag(parser, "--json", "print JSON")


def run(options: argparse.Namespace) -> int:
    """Applies the delta, and prints the names of the files."""
    from etkit.registry.oci import delta

    applied = delta.apply(options.delta, options.directory)
    names = [name for files in applied["programs"].values() for name in files]
    removed = [name for files in applied.get("removed", {}).values() for name in files]
    if options.json:
        print(json.dumps({"files": names, "removed": removed, "bytes": applied["bytes"]}, indent=2))
    else:
        lines = [str(options.directory / name) for name in names]
        lines += [f"removed: {options.directory / name}" for name in removed]
        print("\n".join(map(printable, lines)))
    return 0
