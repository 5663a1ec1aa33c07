"""`etbuild cache`: shows, checks and shrinks the local cache."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any

from etbuild.cli.options import add_flag, add_parser, add_value
from etbuild.errors import InputError, printable
from etkit.local.options import add_cache_directory

if TYPE_CHECKING:
    from etkit.local.cache.store import Cache

_UNITS = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(verbs, "cache", "show, check or shrink the local cache")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, summary, act in (
        ("info", "show the size and content of the cache", _info),
        ("verify", "read every entry, and remove damaged ones", _verify),
        ("gc", "remove the entries that were unused for longest", _gc),
    ):
        action = add_parser(actions, name, summary)
        add_cache_directory(action)
        add_flag(action, "--json", "print JSON")
        action.set_defaults(act=act)
        if name == "gc":
            add_value(action, "--max-size SIZE", "size to shrink the cache to, such as 500MB, 10GB or 0", required=True)


def run(options: argparse.Namespace) -> int:
    """Runs the action."""
    return int(options.act(options))


def _open(options: argparse.Namespace) -> Cache:
    from etbuild.files.cache_directory import default_directory
    from etkit.local.cache.store import Cache

    return Cache(options.cache_dir or default_directory())


def _info(options: argparse.Namespace) -> int:
    from etkit.building import cache_upkeep
    from etkit.tables import size, table

    info = cache_upkeep.info(_open(options))
    if options.json:
        print(json.dumps({**dataclasses.asdict(info), "directory": str(info.directory)}, indent=2))
        return 0
    rows = [("cache", str(info.directory)), ("size", size(info.size)), ("blobs", str(info.blobs))]
    print(table([*rows, *((f"{step} records", str(count)) for step, count in info.records.items())]))
    return 0


def _verify(options: argparse.Namespace) -> int:
    from etkit.building import cache_upkeep

    damaged = cache_upkeep.verify(_open(options))
    if options.json:
        print(json.dumps(damaged, indent=2))
    else:
        print("\n".join(map(printable, damaged)) or "no damage")
    return 1 if damaged else 0


def _gc(options: argparse.Namespace) -> int:
    from etkit.building import cache_upkeep
    from etkit.tables import size

    removed = cache_upkeep.gc(_open(options), _bytes(options.max_size))
    if options.json:
        print(json.dumps(dataclasses.asdict(removed), indent=2))
    else:
        what = f"{removed.records} records and {removed.blobs} blobs removed"
        print(f"{what}: {size(removed.freed)} freed, {size(removed.size)} left")
    return 0


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]*)", text)
    units = {unit.lower(): factor for unit, factor in _UNITS.items()}
    if match is None or match[2].lower() not in units:
        raise InputError.of(f"--max-size {text}: not a size", "write for example 500MB or 10GB")
    return int(float(match[1]) * units[match[2].lower()])
