"""`etbuild etrecord`: writes an ETRecord of each method, for build rules."""

from __future__ import annotations

import argparse
from typing import Any

from etbuild.cli.options import (
    add_data,
    add_exported,
    add_path,
    add_step_parser,
    exported,
    inputs,
    watch,
    with_positions,
)


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_step_parser(verbs, "etrecord", "Write an ETRecord of each method of a program", "lower-plan")
    add_exported(parser)
    add_data(parser)
    add_path(parser, "--program FILE", "the .pte that was built", required=True)
    add_path(parser, "-o, --out DIR", "the directory NAME.etrecord to write", dest="directory", required=True)


def run(options: argparse.Namespace) -> int:
    """Writes the ETRecords."""
    options.restart()
    with with_positions(options):
        _write(options)
    return 0


def _write(options: argparse.Namespace) -> None:
    from etbuild.plan.step_plans import LowerPlan, read_plan
    from etbuild.publishing.artifacts import whole_directory
    from etbuild.steps.lowering_options import LoweringOptions
    from etbuild.steps.saved_export import LoweringJob
    from etkit.local import etrecord
    from etkit.local.progress import Steps

    plan = read_plan(options.lower_plan, LowerPlan)
    plan.check_backends()
    export = exported(options)
    job = LoweringJob(plan, export, inputs(options, []), Steps().stage, watch(options), LoweringOptions(jobs=1))
    with whole_directory(options.directory) as staged:
        etrecord.write(staged, etrecord.etrecords(job, export.lines, options.program, staged))
