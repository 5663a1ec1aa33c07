"""Options that several verbs have, and what they mean."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild.errors import InputError, Positions, Problem

if TYPE_CHECKING:
    from etbuild.cache.store import Cache
    from etbuild.inputs.declared import Inputs
    from etbuild.steps.resources import Effort


def add_parser(verbs: Any, name: str, summary: str) -> argparse.ArgumentParser:
    """A verb's parser. Options have to be written out, so that a new one never changes what an old script means."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", allow_abbrev=False
    )
    return parser


def add_step_parser(verbs: Any, name: str, summary: str) -> argparse.ArgumentParser:
    """The parser of a verb for build rules, which the list of verbs leaves out."""
    parser: argparse.ArgumentParser = verbs.add_parser(name, description=f"{summary}.", allow_abbrev=False)
    return parser


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """The manifest and where its sources and data are."""
    add_manifest(parser)
    add_roots(parser)
    add_declared(parser)


def add_manifest(parser: argparse.ArgumentParser) -> None:
    """The manifest."""
    parser.add_argument("manifest", type=Path, metavar="MANIFEST", help="the manifest, such as model.yaml")


def add_roots(parser: argparse.ArgumentParser) -> None:
    """Directories that are searched."""
    parser.add_argument(
        "--root",
        action="append",
        default=[],
        type=Path,
        metavar="DIR",
        help="search sources and data here too, after the manifest's directory (may be repeated)",
    )


def add_declared(parser: argparse.ArgumentParser) -> None:
    """Sources and data by name."""
    add_sources(parser)
    add_data(parser)


def add_sources(parser: argparse.ArgumentParser) -> None:
    """Sources by name."""
    parser.add_argument(
        "--source",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="declare a source by import path, such as models/net.py=FILE (may be repeated)",
    )


def add_data(parser: argparse.ArgumentParser) -> None:
    """Data by name."""
    parser.add_argument(
        "--data",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="declare a data file by the name that the manifest uses (may be repeated)",
    )


def add_cache_directory(parser: argparse._ActionsContainer) -> None:
    """Where the local cache is."""
    parser.add_argument(
        "--cache-dir",
        type=Path,
        metavar="DIR",
        help="the local cache (default: $ETBUILD_CACHE_DIR, else etbuild in the user's cache directory)",
    )


def add_effort(parser: argparse.ArgumentParser) -> None:
    """How hard a lowering tries to be fast."""
    parser.add_argument(
        "--jobs",
        type=_count,
        metavar="N",
        help="how many methods are lowered at once (default: one for each processor)",
    )
    parser.add_argument(
        "--no-accelerate",
        action="store_true",
        help="lower as ExecuTorch alone does: slower, with the same bytes",
    )


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 on")
    return int(text)


def effort(options: argparse.Namespace) -> Effort:
    """What the options of `add_effort` say."""
    from etbuild.steps.resources import Effort, processors

    return Effort(not options.no_accelerate, options.jobs or processors())


def cache(directory: Path | None) -> Cache | None:
    """The local cache. Where the default one cannot be used, a build does without, and says so.

    Raises:
        InputError: The directory that the user names cannot be used.
    """
    from etbuild.cache.store import Cache, default_directory

    if directory is not None:
        return Cache(directory)
    try:
        return Cache(default_directory())
    except InputError as error:
        print(f"note: building without a cache: {error}", file=sys.stderr)
        return None


def declared(option: str, values: list[str]) -> dict[str, Path]:
    """The files of a repeated `NAME=FILE`, by name.

    Raises:
        InputError: It has another form, or a name stands for two files.
    """
    found: dict[str, Path] = {}
    for value in values:
        name, separator, path = value.partition("=")
        if not separator or not name or not path:
            raise InputError([Problem(f"{option} {value}: expected NAME=FILE")])
        if name in found and found[name] != Path(path):
            raise InputError([Problem(f"{option}: the name `{name}` stands for {found[name]} and for {path}")])
        found[name] = Path(path)
    return found


def inputs(options: argparse.Namespace, roots: list[Path]) -> Inputs:
    """What a build may read, by the options of `add_declared`.

    Raises:
        InputError: A declaration or a root is wrong.
    """
    from etbuild.inputs.declared import Inputs

    for root in roots:
        if not root.is_dir():
            raise InputError([Problem(f"--root {root}: not a directory")])
    sources = declared("--source", getattr(options, "source", []))
    return Inputs(sources, declared("--data", options.data), roots)


def positions_beside(plan: Path) -> Positions:
    """Line numbers of the manifest, from the file that `plan --positions` wrote beside the real plan, if it is there.

    It is no input of the later steps, so that a comment in a manifest changes no key: it is read to word an error,
    never for an output.
    """
    from etbuild.files import json_file
    from etbuild.plan.positions import positions_from_json

    real = plan.resolve()
    name = re.sub(r"(\.export|\.lower(\.[^.]+)?)?(\.plan)?(\.json)?\Z", "", real.name)
    try:
        beside = real.with_name(f"{name}.positions.json")
        return positions_from_json(json_file.read(beside, "positions", "plan#positions"))
    except InputError:
        return {}
