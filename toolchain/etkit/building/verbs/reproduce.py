"""`etbuild reproduce`: builds a second time and compares, for build rules."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from etbuild.cli.options import (
    add_declared,
    add_exported,
    add_path,
    add_repeatable,
    add_step_parser,
    declared,
    inputs,
    with_positions,
)


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_step_parser(
        verbs,
        "reproduce",
        "Build a second time, and compare every file with that of the first build",
        "export-plan",
        "lower-plan",
    )
    add_declared(parser)
    parser.add_argument(
        "--against",
        action="append",
        required=True,
        type=Path,
        metavar="FILE",
        help="an artifact of the first build: a file, or a directory of shards (repeatable)",
    )
    add_exported(parser)
    add_path(parser, "--examples FILE", "the example inputs that the export wrote")
    add_path(parser, "--inputs FILE", "the digests that the export wrote")
    add_repeatable(parser, "--lowered DIR", "what `etbuild lower --templates` wrote", type=Path)
    add_path(parser, "--stamp FILE", "an empty file to write if nothing differs", required=True)


def run(options: argparse.Namespace) -> int:
    """Builds, compares, and writes the stamp."""
    from etbuild.key.import_graph import used_sources
    from etbuild.plan.step_plans import ExportPlan, LowerPlan, read_plan
    from etbuild.publishing import artifacts
    from etkit.building import reproduce
    from etkit.local.build import FirstBuild

    export_plan = read_plan(options.export_plan, ExportPlan)
    lower_plan = read_plan(options.lower_plan, LowerPlan)
    read_from = inputs(options, [])
    first = FirstBuild(
        options.against,
        options.export,
        declared("--exported", options.exported),
        [method for path in options.lowered for method in sorted(path.iterdir()) if method.is_dir()],
        options.lines,
        options.examples,
        options.inputs,
    )
    with with_positions(options):
        used = used_sources(read_from, export_plan)
        reproduce.verify(export_plan, lower_plan, read_from, used, first)
    artifacts.replace(options.stamp, b"")
    return 0
