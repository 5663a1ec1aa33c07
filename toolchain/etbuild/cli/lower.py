"""`etbuild lower`: lowers an export. The second step of a build, for build rules."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from etbuild.cli.options import (
    add_data,
    add_exported,
    add_flag,
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

if TYPE_CHECKING:
    from etbuild.plan.step_plans import MethodPlan
    from etbuild.steps.saved_export import LoweringJob

P = TypeVar("P", bound="MethodPlan")


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_step_parser(verbs, "lower", "Lower an export: the second step of a build", "lower-plan")
    add_exported(parser)
    add_data(parser)
    part = parser.add_mutually_exclusive_group()
    add_flag(
        part, "--templates", help="only lower methods without weights; a later call binds them and writes the program"
    )
    add_repeatable(part, "--lowered DIR", help="use the result of an earlier call with --templates", type=Path)
    add_flag(parser, "--with-weights", help="with --templates: also lower, with their weights, methods that need them")
    add_path(
        parser, "--computed FILE", help="also write the weights that were computed from others, for `etbuild compare`"
    )
    add_lowering_options(parser)
    add_path(parser, "-o, --out DIR", help="directory for the program", dest="directory", required=True)


def run(options: argparse.Namespace) -> int:
    """Lowers the methods and writes the program, its named data and the facts about both; or only lowers methods."""
    options.restart()
    with with_positions(options, options.lines) as unused:
        if options.templates:
            unused += _lower_templates(options)
        else:
            _lower(options)
    return 0


def _lower_templates(options: argparse.Namespace) -> list[Path]:
    """Writes lowered methods. Returns the files that cannot change them."""
    from etbuild.plan.step_plans import MethodPlan, read_plan
    from etbuild.publishing.artifacts import whole_directory
    from etbuild.steps import one_by_one

    plan = read_plan(options.lower_plan, MethodPlan)
    plan.check_backends()
    with whole_directory(options.directory) as staged:
        return one_by_one.needed().templates(_job(options, plan), staged, weights=options.with_weights)


def _lower(options: argparse.Namespace) -> None:
    from etbuild.plan.step_plans import LowerPlan, read_plan
    from etbuild.publishing.artifacts import publish, staging
    from etbuild.steps import one_by_one
    from etbuild.steps.lower import Lowering

    plan = read_plan(options.lower_plan, LowerPlan)
    plan.check_backends()
    with staging(options.directory) as staged:
        (methods := staged / "methods").mkdir()
        lowering = Lowering(_job(options, plan), staged, methods)
        lowered = options.lowered
        publish(one_by_one.needed().merge(lowering, lowered) if lowered else lowering.run(), options.directory)
    if options.computed is not None:
        options.computed.touch()  # an empty file if there are no such weights


def _job(options: argparse.Namespace, plan: P) -> LoweringJob[P]:
    from etbuild.cli.terminal import stage
    from etbuild.export.kept_weights import KeptWeights
    from etbuild.publishing.artifacts import scratch_in
    from etbuild.steps.saved_export import LoweringJob

    kept = None if options.computed is None else KeptWeights(options.computed, scratch_in)
    return LoweringJob(
        plan, exported(options), inputs(options, []), stage, watch(options), lowering_options(options), kept
    )
