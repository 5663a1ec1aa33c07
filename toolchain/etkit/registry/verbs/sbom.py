"""`etbuild sbom`: prints the bill of materials of a program."""

from __future__ import annotations

import argparse
import json
from typing import Any

from etbuild.cli.options import add_flag, add_parser, add_path, add_value
from etbuild.errors import InputError
from etkit.registry import registry_options


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "sbom",
        "print the bill of materials of a program, in the format CycloneDX",
        "Lists weights, sources and toolchain, with their licenses. Needs the extra `sbom`.",
    )
    add_value(parser, "PLACE", registry_options.PLACE)
    add_value(parser, "--program NAME", "the program, if there are several")
    add_path(parser, "-o, --out FILE", "write it to this file instead")
    add_flag(
        parser,
        "--attach",
        "push it to the registry of PLACE as a referrer of the program, for each program of a package",
    )
    registry_options.add_access(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the bill of materials, or attaches it."""
    if options.attach:
        return _attach(options)
    from etbuild.publishing import artifacts
    from etkit.registry.oci import bill_of_materials, package, places

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


def _attach(options: argparse.Namespace) -> int:
    """Pushes the bills of materials of a package in a registry, and prints the references to them."""
    from etkit.registry.oci import bill_of_materials, package, reference

    if options.out is not None:
        raise InputError.of("--attach does not go with -o")
    source = reference.parse(options.place)

    from etkit.registry.oci import transfer

    attached: dict[str, str] = {}
    with registry_options.repository(options, source) as repository:
        content = transfer.read(repository, source.wanted)
        for program in package.chosen(content, [options.program] if options.program else [], str(source)):
            bill = bill_of_materials.make(program, content.index(program))
            layer = bill_of_materials.layer(program, bill)
            attached[program.name] = transfer.attach(repository, program.manifest, layer, bill).digest
    print(json.dumps(attached, indent=2) if options.json else "\n".join(map(source.at, attached.values())))
    return 0
