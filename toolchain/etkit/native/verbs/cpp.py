"""`etbuild cpp`: writes a C++ class for a program, and the program as an array."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from etbuild.cli.options import add_flag, add_parser, add_path, add_value
from etbuild.errors import InputError, printable


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "cpp",
        "write a C++ class for a program",
        "Its methods take and return tensors whose dtypes and static shapes the compiler checks.",
    )
    add_path(parser, "PROGRAM", "an index, or a directory or a .pte with its index")
    add_path(parser, "-o, --out DIR", "directory for the files", dest="directory", default=Path())
    add_value(parser, "--namespace NAME", "the namespace, such as app::models (default: the program's)")
    add_value(parser, "--stem NAME", "the name of the files, without suffixes (default: the program's)")
    add_flag(parser, "--embed", "also write the files of the program as NAME_data.h and NAME_data.cc")
    add_value(parser, "--max-bytes N", "with --embed: the largest size of all files (default: 16 MiB)", type=int)


def run(options: argparse.Namespace) -> int:
    """Writes the files and prints their paths."""
    from etbuild.files import json_file
    from etbuild.publishing import artifacts
    from etkit.find_index import read_index
    from etkit.native.cpp import embed, wrapper

    path, index = read_index(options.program)
    name = index["name"]
    if options.max_bytes is not None and not options.embed:
        raise InputError.of("--max-bytes goes with --embed")
    report = json_file.read(path.with_name(f"{name}.report.json"), json_file.Format("a report", "report"))
    stem = options.stem or wrapper.file_stem(name)
    if not re.fullmatch(r"\w[\w.+-]*", stem):
        raise InputError.of(f"--stem {stem}: not the name of a file", "use letters, digits, `_`, `-`, `+` and `.`")
    made = {f"{stem}.h": wrapper.header(index, report, options.namespace)}
    if options.embed:
        limit = embed.MAX_BYTES if options.max_bytes is None else options.max_bytes
        made.update(embed.files(index, path.parent, stem, options.namespace, limit))
    try:
        options.directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError.of(f"{options.directory}: cannot make the directory: {error.strerror}") from None
    for file, text in made.items():
        artifacts.replace(options.directory / file, text.encode())
        print(printable(str(options.directory / file)))
    return 0
