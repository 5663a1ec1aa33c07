"""`etbuild catalog`: writes a catalog of programs for applications that download them."""

from __future__ import annotations

import argparse
from typing import Any

from etbuild.cli.options import add_parser, add_path, add_value


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "catalog",
        "write a catalog of programs for applications that download them, as JSON",
        "Lists each program below a directory with its files, digests, addresses, inputs and outputs. Reads each file.",
    )
    add_path(parser, "DIR", "a directory of builds, with those in its folders, or an index")
    add_value(parser, "--base-url URL", "the address where the content of DIR will be", required=True)
    add_path(parser, "-o, --out FILE", "write it to this file instead of printing it")


def run(options: argparse.Namespace) -> int:
    """Prints or writes the catalog."""
    from etbuild.publishing import artifacts
    from etkit.publishing import builds, catalog

    address = catalog.checked_address(options.base_url)
    content = catalog.encoded(builds.read(options.dir), address)
    if options.out is not None:
        artifacts.replace(options.out, content)
    else:
        print(content.decode(), end="")
    return 0
