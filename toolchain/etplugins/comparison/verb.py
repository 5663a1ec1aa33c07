"""`etbuild compare`: compares a program with its model and its exported methods, for build rules."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import Any

from etbuild.cli.options import (
    add_declared,
    add_exported,
    add_lowering_options,
    add_path,
    add_repeatable,
    add_step_parser,
    exported,
    inputs,
    lowering_options,
    watch,
    with_positions,
)


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_step_parser(verbs, "compare", "Compare a program with its model", "compare-plan")
    add_exported(parser)
    add_path(parser, "--examples FILE", help="the file that `etbuild export --examples` wrote", required=True)
    add_declared(parser)
    add_path(parser, "--lowering FILE", help="the file NAME.lowering.json of `etbuild lower`", required=True)
    add_path(parser, "--program FILE", help="the .pte that `etbuild lower` wrote", required=True)
    add_repeatable(parser, "--named-data FILE", help="a .ptd of the program, or a directory of them", type=Path)
    add_path(parser, "--computed FILE", help="the file that `etbuild lower --computed` wrote")
    add_lowering_options(parser)
    add_path(
        parser,
        "-o, --out FILE",
        help="write that the program is right, as Buck2 reads the result of a validation",
        dest="result",
        required=True,
    )


def run(options: argparse.Namespace) -> int:
    """Compares the program."""
    options.restart()
    with with_positions(options, options.lines):
        _compare(options)
    return 0


def _compare(options: argparse.Namespace) -> None:
    from etbuild import notes
    from etbuild.cli.terminal import stage
    from etbuild.export.kept_weights import KeptWeights
    from etbuild.files.scratch import temporary
    from etbuild.key.import_graph import used_sources
    from etbuild.plan.step_plans import read_plan
    from etbuild.publishing.artifacts import replace, scratch_in
    from etbuild.steps.facts import read_lowering
    from etbuild.steps.saved_export import LoweringJob
    from etplugins.comparison.parts import ComparePlan
    from etplugins.comparison.step import RESULT, Built, compare
    from etplugins.comparison.witness import Witness

    plan = read_plan(options.compare_plan, ComparePlan)
    file: Path | None = options.computed
    kept = KeptWeights(file, scratch_in) if file is not None and file.stat().st_size else None
    lowering = lowering_options(options)
    read_from = inputs(options, [])
    used = used_sources(read_from, plan.exported)
    job = LoweringJob(plan, exported(options), read_from, stage, watch(options), lowering, kept)
    files = [each for path in options.named_data for each in (sorted(path.iterdir()) if path.is_dir() else [path])]
    built = Built(read_lowering(options.lowering), options.program, {file.name: file for file in files})
    with temporary("compare") as scratch:
        (meanwhile := scratch.path / "meanwhile").mkdir()
        with contextlib.closing(Witness(lambda: job, used, options.examples)) as witness:
            compare(job, witness, built, meanwhile, scratch.path / RESULT)
        notes.show_of_comparison(scratch.path / RESULT)
        replace(options.result, (scratch.path / RESULT).read_bytes())
