"""Adds the options that name the local cache, and opens it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from etbuild.cli.options import add_flag, add_path
from etbuild.errors import InputError

if TYPE_CHECKING:
    from etkit.local.cache.store import Cache


def add_cache_directory(parser: argparse._ActionsContainer) -> None:
    """Adds the option that names the directory of the local cache."""
    add_path(
        parser,
        "--cache-dir DIR",
        "directory of the local cache (default: $ETBUILD_CACHE_DIR, or `etbuild` in the user's cache directory)",
    )


def add_cache(parser: argparse._ActionsContainer) -> None:
    """Adds the options that name the directory of the local cache, or use none."""
    where = parser.add_mutually_exclusive_group()
    add_cache_directory(where)
    add_flag(where, "--no-cache", "do not read or write the local cache")


def kept_cache(options: argparse.Namespace) -> Cache | None:
    """Returns the local cache, from the options of `add_cache`. Errors and notes are those of `cache`."""
    return None if options.no_cache else cache(options.cache_dir)


def cache(directory: Path | None, quiet: bool = False) -> Cache | None:
    """Returns the local cache. If the default directory cannot be used, returns None, and prints a note unless `quiet`.

    Raises:
        InputError: The directory that the user named cannot be used.
    """
    from etbuild.files.cache_directory import default_directory
    from etbuild.processes import handover
    from etkit.local.cache.store import Cache

    if directory is not None:
        return Cache(directory)
    try:
        return Cache(default_directory())
    except InputError as error:
        if not quiet:
            handover.note(f"building without a cache: {error}")
        return None
