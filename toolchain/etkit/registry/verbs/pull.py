"""`etbuild pull`: pulls programs from a registry."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from etbuild.cli.options import add_parser, add_path
from etbuild.errors import printable
from etkit.local.options import add_cache_directory, cache
from etkit.registry import registry_options


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "pull",
        "pull programs from a registry",
        "Fetches only what the directory and the local cache do not have.",
    )
    registry_options.add_reference(parser)
    add_path(parser, "-o, --out DIR", "where the files go (default: current directory)", default=Path())
    registry_options.add_programs(parser)
    registry_options.add_signed(parser)
    add_cache_directory(parser)
    registry_options.add(parser)


def run(options: argparse.Namespace) -> int:
    """Pulls the programs, and prints the names of their files."""
    from etkit.registry.oci import reference

    source = reference.parse(options.reference)

    from etkit.registry.oci import package, transfer

    kept = cache(options.cache_dir, quiet=True)
    with registry_options.repository(options, source) as repository, registry_options.work(options, "pulling") as work:
        content = transfer.read(repository, source.wanted, registry_options.accept(options))
        programs = package.chosen(content, options.programs, str(source))
        moved = transfer.pull(repository, content, programs, options.out, kept, work)
    if options.json:
        registry_options.print_json(content, moved)
        return 0
    for program in programs:
        for name in program.files:
            print(printable(str(options.out / name)))
    print(registry_options.summary("fetched", moved))
    print(source.at(content.root.digest))
    return 0
