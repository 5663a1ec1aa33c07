"""`etbuild package`: puts finished programs into a package for a registry."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from etbuild.cli.options import add_flag, add_parser, add_path, add_repeatable, add_value, named_value
from etbuild.errors import InputError, printable


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "package",
        "put finished programs into a package for a registry",
        "Writes an OCI image layout, which also skopeo, oras and crane can read. Equal programs give equal bytes.",
    )
    parser.add_argument(
        "builds", type=Path, nargs="+", metavar="INDEX", help="an index of a build, or a directory with one index"
    )
    add_path(parser, "-o, --out DIR", "write the layout as this directory")
    add_path(parser, "--tar FILE", "write the layout as this tar file")
    add_repeatable(
        parser,
        "--annotation KEY=VALUE",
        "an annotation of the package, such as org.opencontainers.image.source=URL",
        dest="annotations",
    )
    add_value(
        parser,
        "--builder URI",
        "who has built the programs, for their provenance, such as https://ci.example.com/models",
    )
    add_flag(parser, "--json", "print JSON")


def run(options: argparse.Namespace) -> int:
    """Writes the layout, and prints the digests."""
    from etkit.registry.oci import layout, package, provenance
    from etkit.tables import size, table

    annotations = _annotations(options.annotations)
    written = [path for path in (options.out, options.tar) if path is not None]
    if not written:
        raise InputError.of("there is no place for the package", "name a directory with -o, or a file with --tar")
    made = package.make(options.builds, annotations, options.builder or provenance.UNNAMED_BUILDER)
    if options.out is not None:
        layout.write(made, options.out)
    if options.tar is not None:
        layout.write_tar(made, options.tar)
    content = made.package
    if options.json:
        programs = {program.name: program.manifest.digest for program in content.programs}
        print(json.dumps({"digest": content.root.digest, "programs": programs}, indent=2))
        return 0
    sizes = {program.name: sum(blob.size for blob in program.files.values()) for program in content.programs}
    rows = [("program", "size", "digest")]
    rows += [(program.name, size(sizes[program.name]), program.manifest.digest) for program in content.programs]
    print(table([*rows, ("package", size(sum(blob.size for blob in content.blobs.values())), content.root.digest)]))
    print(f"written: {', '.join(printable(str(path)) for path in written)}")
    return 0


def _annotations(values: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in values:
        key, value = named_value("--annotation", text, "KEY=VALUE")
        if found.get(key, value) != value:
            raise InputError.of(f"--annotation: `{key}` is given twice, as {found[key]} and as {value}")
        found[key] = value
    return found
