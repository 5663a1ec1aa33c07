"""`etbuild export`: exports methods. The first step of a build, for build rules."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from etbuild.cli.options import (
    add_declared,
    add_path,
    add_repeatable,
    add_step_parser,
    declared,
    inputs,
    watch,
    with_positions,
)
from etbuild.errors import InputError


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_step_parser(verbs, "export", "Export the methods: the first step of a build", "export-plan")
    add_declared(parser)
    add_path(
        parser, "--inputs FILE", help="write the digests of everything that the export reads to FILE", required=True
    )
    add_repeatable(parser, "--method NAME=FILE", help="write this method to FILE instead of into DIR", dest="methods")
    add_path(
        parser,
        "--lines FILE",
        help="write the lines of the sources, which only messages name, to FILE instead of into DIR",
    )
    add_path(
        parser,
        "--examples FILE",
        help="write the example inputs, which only the comparison reads, to FILE instead of into DIR",
    )
    add_path(parser, "-o, --out DIR", help="directory for the export", dest="directory", required=True)


def run(options: argparse.Namespace) -> int:
    """Exports the methods, and writes the digests of everything that the export read."""
    from etbuild.cli.terminal import stage
    from etbuild.export.layout import EXAMPLES, LINES
    from etbuild.files import digests
    from etbuild.key.import_graph import used_sources
    from etbuild.key.key import KeyFiles
    from etbuild.plan.step_plans import ExportPlan, read_plan
    from etbuild.publishing import artifacts
    from etbuild.steps.export import export

    options.restart()
    plan = read_plan(options.export_plan, ExportPlan)
    read_from = inputs(options, [])
    with digests.hashed_once(), with_positions(options):
        files = KeyFiles.read(read_from, used_sources(read_from, plan), plan.data_names)
        with artifacts.whole_directory(options.directory) as staged:
            export(plan, read_from, files.used, staged, stage, watch(options))
            for name, path in declared("--method", options.methods).items():
                _move(staged, name, path)
            for name, path in ((LINES, options.lines), (EXAMPLES, options.examples)):
                if path is not None:
                    artifacts.replace(path, (staged / name).read_bytes())
                    (staged / name).unlink()
            files.check_unchanged()
        artifacts.replace(options.inputs, digests.canonical_json(files.digests))
    return 0


def _move(export: Path, name: str, path: Path) -> None:
    """Moves a method to another path. Writes an empty file if lowering exports the method itself."""
    from etbuild.export.layout import ExportFiles
    from etbuild.publishing import artifacts

    files = ExportFiles.below(export)
    if not files.needs_reexport and name not in files.methods:
        raise InputError.of(f"--method {name}: the plan has no such method")
    if files.needs_reexport:
        artifacts.replace(path, b"")
    else:
        artifacts.replace(path, files.methods[name].read_bytes())
        files.methods[name].unlink()
