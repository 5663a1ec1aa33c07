"""`etbuild lower`: lowers an export. The second step of a build, for build rules."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from etbuild.cli.options import (
    add_data,
    add_exported,
    add_lowering_options,
    add_path,
    add_positions,
    add_repeatable,
    add_reserved_memory,
    add_step_parser,
    add_value,
    declared,
    exported,
    inputs,
    lowering_options,
    tell_memory,
    with_positions,
)
from etbuild.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from etbuild.plan.step_plans import MethodPlan
    from etbuild.steps.saved_export import LoweringJob

P = TypeVar("P", bound="MethodPlan")


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_step_parser(verbs, "lower", "Lower an export: the second step of a build")
    parser.add_argument("plan", type=Path, metavar="LOWER_PLAN", help="the file that `etbuild plan --lower-plan` wrote")
    add_positions(parser)
    add_reserved_memory(parser)
    add_exported(parser)
    add_data(parser)
    part = parser.add_mutually_exclusive_group()
    add_value(part, "--method NAME", "lower only this method; a later call merges it with the others")
    add_repeatable(part, "--lowered NAME=DIR", "merge this method, which an earlier call lowered with --method")
    add_lowering_options(parser)
    add_path(parser, "-o DIR", "directory for the program", dest="directory", required=True)


def run(options: argparse.Namespace) -> int:
    """Lowers the methods and writes the program, its named data and the facts about both; or writes one lowered
    method."""
    options.restart()
    with with_positions(options, options.lines) as unused:
        if options.method is None:
            _lower(options)
        else:
            unused += _lower_method(options)
    tell_memory(options)
    return 0


def _lower_method(options: argparse.Namespace) -> list[Path]:
    """Writes a lowered method. Returns the files that cannot change it."""
    from etbuild.files.artifacts import whole_directory
    from etbuild.plan.step_plans import MethodPlan, read_plan
    from etbuild.steps import lower

    plan = read_plan(options.plan, MethodPlan)
    plan.check_backends()
    if options.method not in plan.methods:
        message = f"--method {options.method}: the plan has no such method"
        raise InputError.of(message, did_you_mean(options.method, plan.methods))
    with whole_directory(options.directory) as staged:
        return lower.lower_method(_job(options, plan), options.method, staged)


def _lower(options: argparse.Namespace) -> None:
    from etbuild.files.artifacts import publish, staging
    from etbuild.plan.step_plans import LowerPlan, read_plan
    from etbuild.steps import lower
    from etbuild.steps.method_store import MethodStore

    plan = read_plan(options.plan, LowerPlan)
    plan.check_backends()
    methods = declared("--lowered", options.lowered)
    if methods and methods.keys() != plan.methods.keys():
        raise InputError.of(f"--lowered names {', '.join(methods)}; the plan has {', '.join(plan.methods)}")
    job = _job(options, plan)
    with staging(options.directory) as staged:
        if methods:
            (store := MethodStore(staged / "methods")).directory.mkdir()
            artifacts = lower.merge(job, methods, staged, store)
        else:
            artifacts = lower.lower(job, staged)
        publish(artifacts, options.directory)


def _job(options: argparse.Namespace, plan: P) -> LoweringJob[P]:
    from etbuild.cli.terminal import Progress
    from etbuild.steps.saved_export import LoweringJob

    return LoweringJob(plan, exported(options), inputs(options, []), Progress().stage, lowering_options(options))
