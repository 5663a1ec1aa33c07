"""`etbuild verify`: compares every file of a package with its digest, and the package with a policy."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from etbuild.cli.options import add_parser, add_path, add_value
from etbuild.errors import counted
from etkit.registry import registry_options


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "verify",
        "compare every file of a package or of a build with its digest",
        "Compares the provenance in a package with the files too.",
    )
    add_value(
        parser,
        "PLACE",
        "a package in a registry (REGISTRY/REPOSITORY:TAG or ...@sha256:DIGEST), the directory of a layout, a "
        "directory of programs, or an index",
    )
    add_path(parser, "--policy FILE", "also check that each program is one that this policy allows")
    registry_options.add_programs(parser)
    registry_options.add_signed(parser)
    registry_options.add(parser)


def run(options: argparse.Namespace) -> int:
    """Reads every file, and prints their number."""
    from etbuild.errors import InputError
    from etkit.registry.oci import package, places, policy

    allowed = policy.read(options.policy) if options.policy is not None else None
    if Path(options.place).exists() and options.signed is not None:
        raise InputError.of("--signed is for a package in a registry")
    access, accept = registry_options.access(options), registry_options.accept(options)
    with places.opened(options.place, access, accept) as place, registry_options.work(options, "checking") as work:
        statements = place.statements()
        holds_statements = place.holds_statements
        programs = package.chosen(place.content, options.programs, options.place)
        count = place.check(programs, work)
    builders = {
        program.name: [each.builder for each in statements if each.subject.sha256 == program.manifest.sha256]
        for program in programs
    }
    if allowed is not None:
        policy.check(allowed, [(place.content.index(program), builders[program.name]) for program in programs])
    if options.json:
        digests = {program.name: program.manifest.digest for program in programs}
        print(json.dumps({"programs": digests, "files": count, "builders": builders}, indent=2))
        return 0
    print(f"{counted(count, 'file')} of {', '.join(program.name for program in programs)}: as their digests say")
    if allowed is not None:
        print(f"allowed by {options.policy}")
    if not holds_statements:
        print("a directory of programs has no statements about who has built them: those are in a package")
    for name, named in builders.items():
        if holds_statements and not named:
            print(f"no statement says who has built {name}")
    return 0
