"""`etbuild delta`: lists what a device that has some programs must fetch to have others."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from etbuild.cli.options import add_flag, add_parser, add_path, add_value
from etbuild.errors import printable
from etbuild.extras import install_hint
from etkit.registry import registry_options


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "delta",
        "list the files that a device with some programs must fetch for others",
        "Makes patches of programs if they save more than half. This needs the extra `delta`.",
    )
    add_value(parser, "BEFORE", f"the files of the device: {registry_options.PLACE}")
    add_value(parser, "AFTER", "what it should have: the same")
    add_path(parser, "-o, --out DIR", "write the files that the device must fetch, for `etbuild apply`")
    add_flag(parser, "--no-patches", "make no patches: whole files only")
    add_flag(
        parser,
        "--partial",
        "AFTER has only some of the programs: the device keeps the others (default: it removes them)",
    )
    registry_options.add_access(parser)


def run(options: argparse.Namespace) -> int:
    """Prints what is to be fetched, and writes it."""
    from etkit.registry.oci import delta, places
    from etkit.tables import size, table

    access = registry_options.access(options)
    patches = not options.no_patches and delta.has_library()
    if not patches and not options.no_patches:
        print(f"note: no patches are made: {install_hint('delta')}", file=sys.stderr)
    with places.opened(options.before, access) as before, places.opened(options.after, access) as after:
        made, contents = delta.make(before, after, patches, options.partial)
        if options.out is not None:
            delta.write(made, contents, after, options.out)
    if options.json:
        print(json.dumps(made, indent=2))
        return 0
    rows = [("file", "size", "to fetch")]
    for files in made["programs"].values():
        for name, entry in files.items():
            cost = {"keep": 0, "fetch": entry["size"], "patch": entry.get("patch", entry)["size"]}[entry["how"]]
            word = " (patch)" if entry["how"] == "patch" else ""
            rows.append((printable(name), size(entry["size"]), f"{size(cost)}{word}" if cost else "-"))
    rows += [(printable(name), "-", "removed") for files in made.get("removed", {}).values() for name in files]
    for name, change in made.get("changes", {}).items():
        print(f"{printable(name)}: {_told(change)}")
    print(table([*rows, ("in all", size(made["whole_bytes"]), size(made["bytes"]))]))
    return 0


def _told(change: dict[str, Any]) -> str:
    weights = change["weights"]
    counted = f"{weights['changed']:,} of {weights['of']:,} in weights files"
    if change["program"]:
        return "the program changed" + (f", and weights: {counted}" if weights["changed"] else "")
    return f"only weights changed: {counted}" if weights["changed"] else "the program is the same"
