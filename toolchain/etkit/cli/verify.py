"""`etbuild verify`: compares every file of a package with its digest, and the package with a policy."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild.cli.options import add_parser, add_path
from etkit.cli import registry_options

if TYPE_CHECKING:
    from etkit.oci.package import Package, Program


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "verify",
        "compare every file of a package or of a build with its digest",
        "Compares the provenance in a package with the files too. A package in a registry needs the extra `registry`.",
    )
    parser.add_argument(
        "place",
        metavar="PLACE",
        help="a package in a registry (REGISTRY/REPOSITORY:TAG or ...@sha256:DIGEST), the directory of a layout, a "
        "directory of programs, or an index",
    )
    add_path(parser, "--policy FILE", "also check that each program is one that this policy allows")
    registry_options.add_programs(parser)
    registry_options.add_signed(parser)
    registry_options.add(parser)


def run(options: argparse.Namespace) -> int:
    """Reads every file, and prints their number."""
    from etbuild.errors import InputError
    from etkit.oci import layout, policy

    wanted = policy.read(options.policy) if options.policy is not None else None
    place = Path(options.place)
    if place.exists() and options.signed is not None:
        raise InputError.of("--signed is for a package in a registry")
    if not place.exists():
        content, programs, count = _in_registry(options)
    elif place.is_dir() and layout.is_layout(place):
        content, programs, count = _in_layout(place, options.programs)
    else:
        content, programs, count = _in_directory(place, options.programs)
    builders = {
        program.name: [each.builder for each in content.statements if each.subject.sha256 == program.manifest.sha256]
        for program in programs
    }
    if wanted is not None:
        policy.check(wanted, [(content.index(program), builders[program.name]) for program in programs])
    if options.json:
        digests = {program.name: program.manifest.digest for program in programs}
        print(json.dumps({"programs": digests, "files": count, "builders": builders}, indent=2))
    else:
        print(f"{count} files of {', '.join(program.name for program in programs)}: as their digests say")
        if wanted is not None:
            print(f"allowed by {options.policy}")
        for name, named in builders.items():
            if not named:
                print(f"no statement says who has built {name}")
    return 0


def _in_registry(options: argparse.Namespace) -> tuple[Package, list[Program], int]:
    from etkit.oci import package, reference

    source = reference.parse_missing(options.place)

    from etkit.cli.transfer_progress import TransferProgress
    from etkit.oci import transfer

    with registry_options.repository(options, source) as repository, TransferProgress("checking") as progress:
        content = transfer.read(repository, source.wanted, registry_options.accept(options))
        content = transfer.with_referrers(repository, content)
        programs = package.chosen(content, options.programs, str(source))
        return content, programs, transfer.verify(repository, programs, registry_options.work(options, progress))


def _in_layout(directory: Path, names: list[str]) -> tuple[Package, list[Program], int]:
    from etkit.oci import layout, package

    content = layout.read(directory)
    programs = package.chosen(content, names, str(directory))
    blobs = package.blobs(programs)
    for blob in blobs:
        layout.check(directory, blob)
    return content, programs, len(blobs)


def _in_directory(place: Path, names: list[str]) -> tuple[Package, list[Program], int]:
    """The programs of a directory of builds. Nobody has stated there who has built them."""
    from etkit.oci import package

    builds = sorted(place.glob("*.index.json")) if place.is_dir() else [place]
    made = package.make(builds or [place], {})
    programs = package.chosen(made.package, names, str(place))
    blobs = [blob for blob in package.blobs(programs) if blob.sha256 in made.sources]
    for blob in blobs:
        package.check_sources(made, blob)
    content = dataclasses.replace(made.package, statements=[])
    return content, programs, sum(len(made.sources[blob.sha256]) for blob in blobs)
