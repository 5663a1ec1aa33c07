"""Options and output that the verbs for registries share."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from etbuild.cli.options import add_flag, add_path, add_value, count
from etbuild.errors import counted

if TYPE_CHECKING:
    from etkit.registry.oci.attempts import Work
    from etkit.registry.oci.package import Package
    from etkit.registry.oci.reference import Access, Reference
    from etkit.registry.oci.registry import Repository
    from etkit.registry.oci.transfer import Moved

DEFAULTS = {"jobs": 4, "stall_seconds": 60.0}
"""The options of a transfer that have a value if nobody gives one."""
PLACE = "a directory of programs, an index, the layout of a package, or REGISTRY/REPOSITORY:TAG"
"""The kinds of places with programs, for the help of an argument."""


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a transfer, and the options for reaching a registry."""
    add_value(
        parser,
        "--jobs N",
        f"files at the same time (default: {DEFAULTS['jobs']})",
        type=count,
        default=DEFAULTS["jobs"],
    )
    add_access(parser)


def add_access(parser: argparse.ArgumentParser) -> None:
    """Adds the options for reaching a registry, and `--json`."""
    add_flag(
        parser,
        "--plain-http",
        "do without TLS; for a registry on this machine that is the default, unless there is a --ca-file",
    )
    add_path(parser, "--ca-file FILE", "trust the certificates in this file, in PEM format, and no others")
    add_value(
        parser,
        "--stall-seconds SECONDS",
        "give up on an answer that comes later, or slower than 1 kB in a second (default: 60)",
        type=_seconds,
        default=DEFAULTS["stall_seconds"],
    )
    add_flag(parser, "--json", "print JSON")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def add_reference(parser: argparse.ArgumentParser) -> None:
    """Adds the argument that names a package in a registry."""
    add_value(
        parser, "REFERENCE", "a package in a registry: REGISTRY/REPOSITORY:TAG, or REGISTRY/REPOSITORY@sha256:DIGEST"
    )


def add_signed(parser: argparse.ArgumentParser) -> None:
    """Adds the option that checks a signature."""
    add_value(
        parser,
        "--signed COMMAND",
        "first run this command with REGISTRY/REPOSITORY@sha256:DIGEST as its last argument, such as `cosign "
        "verify --key cosign.pub`; if it fails, nothing else is read",
    )


def accept(options: argparse.Namespace) -> Callable[[str], None] | None:
    """Returns a check of signatures, as the options ask for."""
    from etkit.registry.oci import signatures

    return partial(signatures.check, options.signed) if options.signed is not None else None


def add_programs(parser: argparse.ArgumentParser) -> None:
    """Adds the option that names programs of a package."""
    parser.add_argument(
        "--program",
        dest="programs",
        action="append",
        default=[],
        metavar="NAME",
        help="only this program of the package (repeatable; default: all)",
    )


def repository(options: argparse.Namespace, reference: Reference) -> Repository:
    """Reaches the repository of a reference as the options say.

    Raises:
        InputError: The file of certificates is missing, or the registry wants a login.
        BuildError: The registry does not answer.
    """
    from etkit.registry.oci.registry import Repository

    return Repository(reference, access(options))


def access(options: argparse.Namespace) -> Access:
    """How the options say to reach a registry.

    Raises:
        InputError: The options contradict each other.
    """
    from etbuild.errors import InputError
    from etkit.registry.oci.reference import Access

    if options.ca_file is not None and not options.ca_file.is_file():
        raise InputError.of(f"--ca-file {options.ca_file}: no such file")
    if options.ca_file is not None and options.plain_http:
        raise InputError.of("--ca-file does not go with --plain-http, which uses no certificates")
    return Access(options.plain_http, options.ca_file, options.stall_seconds)


@contextmanager
def work(options: argparse.Namespace, word: str) -> Iterator[Work]:
    """How the options say to transfer. A terminal shows the progress, after a word such as `pulling`."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress

    from etkit.registry.oci.attempts import Work

    console, columns = Console(stderr=True), ("  {task.description}", BarColumn(), DownloadColumn())
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(word, total=None)

        def expect(count: int) -> None:
            bar.update(task, total=count)

        def tell(count: int) -> None:
            bar.advance(task, count)

        yield Work(options.jobs, expect, tell)


def summary(word: str, moved: Moved) -> str:
    """One line about what was transferred."""
    from etkit.tables import size

    return (
        f"{counted(moved.sent, 'file')} {word} ({size(moved.sent_bytes)})"
        + (f", {moved.mounted} mounted" if moved.mounted else "")
        + f", {moved.present} were there"
    )


def print_json(content: Package, moved: Moved, more: Mapping[str, Any] | None = None) -> None:
    """Prints the transferred files as JSON, with further facts of a verb."""
    data: dict[str, Any] = {
        "digest": content.root.digest,
        "programs": {program.name: program.manifest.digest for program in content.programs},
        "files": asdict(moved),
    }
    print(json.dumps({**data, **(more or {})}, indent=2))
