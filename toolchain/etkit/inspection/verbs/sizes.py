"""`etbuild sizes`: adds up the bytes of programs by folder."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from etbuild.cli.options import add_flag, add_parser, add_path, add_repeatable, add_value
from etbuild.errors import InputError


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "sizes",
        "add up the bytes of programs by folder, such as by team",
        "Counts what is shipped. A file that several programs of a folder have counts once.",
    )
    parser.add_argument(
        "place", type=Path, nargs="?", metavar="DIR", help="a directory with the indexes of programs below it"
    )
    add_repeatable(
        parser, "--program FOLDER=INDEX", "a program and the folder that it counts for, instead of DIR", dest="programs"
    )
    add_value(parser, "--depth N", "how many parts of a folder's path make a group (default: 1)", type=int, default=1)
    add_flag(parser, "--json", "print JSON")
    add_path(parser, "-o, --out FILE", "write the result to this file, and print nothing")


def run(options: argparse.Namespace) -> int:
    """Prints the sums, or writes them."""
    from etbuild.publishing import artifacts
    from etkit.inspection import folder_sizes

    if (options.place is None) == (not options.programs):
        raise InputError.of("name a directory, or programs with --program")
    if options.depth < 1:
        raise InputError.of(f"--depth {options.depth}: it has to be at least 1")
    programs = folder_sizes.indexes(options.place) if options.place else list(map(_program, options.programs))
    groups = folder_sizes.by_folder(programs, options.depth)
    text = json.dumps(folder_sizes.as_json(groups), indent=2) if options.json else folder_sizes.as_text(groups)
    if options.out is None:
        print(text)
    else:
        artifacts.replace(options.out, f"{text}\n".encode())
    return 0


def _program(text: str) -> tuple[str, Path]:
    folder, separator, index = text.partition("=")
    if not separator or not index:
        raise InputError.of(f"--program {text}: expected FOLDER=INDEX")
    return folder, Path(index)
