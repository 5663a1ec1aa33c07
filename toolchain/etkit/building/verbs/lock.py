"""`etbuild lock`: compares a build with a lockfile that is checked in, or writes the lockfile."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from etbuild.cli.options import add_flag, add_parser, add_path, add_value
from etbuild.errors import printable


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(verbs, "lock", "compare a build with its lockfile, or write the lockfile")
    parser.add_argument("build", type=Path, metavar="INDEX", help="an index, or a directory with an index")
    add_path(parser, "LOCK", "the lockfile, such as NAME.lock.json")
    add_flag(parser, "--update", "write the lockfile instead of comparing")
    add_value(
        parser, "--hint TEXT", "how to update the lockfile, for the error message (default: this command with --update)"
    )


def run(options: argparse.Namespace) -> int:
    """Compares the build with the lockfile, or writes the lockfile."""
    from etkit import find_index
    from etkit.building import lockfile

    content = lockfile.lock(find_index.index_of(options.build))
    if options.update:
        lockfile.write(options.lock, content)
        print(f"{printable(str(options.lock))}: written")
    else:
        hint = options.hint or f"etbuild lock {options.build} {options.lock} --update"
        lockfile.check(options.lock, content, hint)
        print(f"{printable(options.lock.name)}: as built")
    return 0
