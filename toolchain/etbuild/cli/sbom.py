"""`etbuild sbom`: prints the bill of materials of a program."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from etbuild.cli import registry_options
from etbuild.cli.options import add_parser
from etbuild.errors import InputError


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "sbom",
        "print the bill of materials of a program, in the format CycloneDX",
        "Lists weights, sources and toolchain, with their licenses. Needs the extra `sbom`.",
    )
    parser.add_argument(
        "place",
        metavar="PLACE",
        help="a directory of programs, an index, the layout of a package, or REGISTRY/REPOSITORY:TAG",
    )
    parser.add_argument("--program", metavar="NAME", help="the program, if there are several")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="write it to this file instead")
    registry_options.add_reach(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints the bill of materials."""
    from etbuild.files import artifacts
    from etbuild.oci import bill_of_materials, package, places

    with places.opened(options.place, registry_options.access(options)) as place:
        programs = package.chosen(place.content, [options.program] if options.program else [], options.place)
        if len(programs) > 1:
            names = ", ".join(program.name for program in programs)
            raise InputError.of(f"{options.place}: has several programs", f"name one with --program: {names}")
        bill = bill_of_materials.make(programs[0], place.content.index(programs[0]))
    if options.out is not None:
        artifacts.replace(options.out, bill)
    else:
        print(bill.decode(), end="")
    return 0
