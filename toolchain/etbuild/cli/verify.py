"""`etbuild verify`: compares every file of a package with its digest."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild.cli import registry_options
from etbuild.cli.options import add_parser

if TYPE_CHECKING:
    from etbuild.oci.package import Program


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "verify",
        "compare every file of a package or of a build with its digest",
        "A package in a registry needs the extra `registry`.",
    )
    parser.add_argument(
        "place",
        metavar="PLACE",
        help="a package in a registry (REGISTRY/REPOSITORY:TAG or ...@sha256:DIGEST), the directory of a layout, a "
        "directory of programs, or an index",
    )
    registry_options.add_programs(parser)
    registry_options.add(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Reads every file, and prints their number."""
    from etbuild.oci import layout

    place = Path(options.place)
    if not place.exists():
        programs, count = _in_registry(options)
    elif place.is_dir() and layout.is_layout(place):
        programs, count = _in_layout(place, options.programs)
    else:
        programs, count = _in_directory(place, options.programs)
    if options.json:
        names = {program.name: program.manifest.digest for program in programs}
        print(json.dumps({"programs": names, "files": count}, indent=2))
    else:
        print(f"{count} files of {', '.join(program.name for program in programs)}: as their digests say")
    return 0


def _in_registry(options: argparse.Namespace) -> tuple[list[Program], int]:
    from etbuild.oci import reference

    source = reference.parse(options.place)

    from etbuild.cli.transfer_progress import TransferProgress
    from etbuild.oci import package, transfer

    with registry_options.repository(options, source) as repository, TransferProgress("checking") as progress:
        programs = package.chosen(transfer.read(repository, source.wanted), options.programs, str(source))
        return programs, transfer.verify(repository, programs, registry_options.work(options, progress))


def _in_layout(directory: Path, names: list[str]) -> tuple[list[Program], int]:
    from etbuild.oci import layout, package

    programs = package.chosen(layout.read(directory), names, str(directory))
    blobs = package.blobs(programs)
    for blob in blobs:
        layout.check(directory, blob)
    return programs, len(blobs)


def _in_directory(place: Path, names: list[str]) -> tuple[list[Program], int]:
    from etbuild.oci import package

    builds = sorted(place.glob("*.index.json")) if place.is_dir() else [place]
    made = package.make(builds or [place], {})
    programs = package.chosen(made.package, names, str(place))
    blobs = [blob for blob in package.blobs(programs) if blob.sha256 not in made.package.documents]
    for blob in blobs:
        package.check_sources(made, blob)
    return programs, sum(len(made.sources[blob.sha256]) for blob in blobs)
