"""`etbuild plan`: shows what would be built, and its key. For build rules it writes the plans of the later steps."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from etbuild.cli.options import add_inputs, add_parser, declared, inputs
from etbuild.errors import EtbuildError

_EXPECTATIONS = {
    "name": "name",
    "methods": "methods",
    "backends": "backends",
    "named-data": "tags of named data",
    "sharded": "tags with a shard size",
}


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(verbs, "plan", "print what would be built, and its key, as JSON")
    parser.usage = "%(prog)s [-h] [--root DIR] [--source NAME=FILE] [--data NAME=FILE] MANIFEST"
    add_inputs(parser)
    rule = parser.add_argument_group("for build rules")
    rule.add_argument("--manifest-name", metavar="NAME", help="name of the manifest in error messages")
    for attribute, what in _EXPECTATIONS.items():
        rule.add_argument(f"--expect-{attribute}", metavar="A,B", help=f"fail if the {what} in the manifest differ")
    rule.add_argument("--plan", type=Path, metavar="FILE", help="write the whole plan to FILE, and print nothing")
    rule.add_argument(
        "--export-plan", type=Path, metavar="FILE", help="write the part of the plan that the export depends on to FILE"
    )
    rule.add_argument(
        "--lower-plan", type=Path, metavar="FILE", help="write the part of the plan that lowering depends on to FILE"
    )
    rule.add_argument(
        "--method-plan",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="write the part of the plan that lowering only this method depends on to FILE (repeatable)",
    )
    rule.add_argument("--positions", type=Path, metavar="FILE", help="write the line numbers of the manifest to FILE")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints the plan and its key, or writes the plans."""
    from etbuild import backends
    from etbuild.files import digests
    from etbuild.inputs import import_graph, key
    from etbuild.manifest import validate
    from etbuild.plan import plan as plans

    loaded = validate.load(options.manifest, options.manifest_name)
    try:
        plan = plans.reduce(loaded.data)
        _check_expectations(plan, options)
        if options.plan is not None:
            backends.check_installed(plans.used_backends(plan), plans.partitioners(plan))
            return _write_plans(plan, loaded, options)
        found = inputs(options, [options.manifest.parent, *options.root])
        used = import_graph.used_sources(found, plans.export_plan(plan))
        described = key.describe_inputs(plan, found, used)
    except EtbuildError as error:
        raise error.located(loaded.positions) from None
    print(json.dumps({"key": digests.digest(described), "inputs": described}, indent=2, sort_keys=True))
    return 0


def _check_expectations(plan: Any, options: argparse.Namespace) -> None:
    from etbuild.plan.plan import check_expectations

    said: dict[str, list[str] | None] = {}
    for attribute in _EXPECTATIONS:
        text = getattr(options, f"expect_{attribute.replace('-', '_')}")
        said[attribute] = None if text is None else [value for value in text.split(",") if value]
    sharded = said["sharded"] or []
    tags = said["named-data"]
    check_expectations(
        plan,
        {
            **{attribute: said[attribute] for attribute in ("name", "methods", "backends")},
            "named_data": None if tags is None else [tag for tag in tags if tag not in sharded],
            "sharded_named_data": None if tags is None else sharded,
        },
    )


def _write_plans(plan: Any, loaded: Any, options: argparse.Namespace) -> int:
    from etbuild.files import artifacts
    from etbuild.files.digests import canonical_json
    from etbuild.plan.plan import export_plan, lower_plan, method_plan, positions_to_json

    lower = lower_plan(plan)
    methods = declared("--method-plan", options.method_plan)
    outputs = (
        *((path, method_plan(lower, name)) for name, path in methods.items()),
        (options.plan, plan),
        (options.export_plan, export_plan(plan)),
        (options.lower_plan, lower),
        (options.positions, positions_to_json(loaded.positions)),
    )
    for path, content in outputs:
        if path is not None:
            artifacts.replace(path, canonical_json(content))
    return 0
