"""`etbuild report`: the last step of a build, for build rules. It runs the manifest's checks."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from etbuild.cli.options import add_step_parser, positions_beside
from etbuild.errors import EtbuildError


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_step_parser(
        verbs, "report", "The last step of a build, for build rules: checks a lowering and writes its report and index"
    )
    parser.add_argument("plan", type=Path, metavar="PLAN", help="what `etbuild plan --plan` wrote")
    parser.add_argument("--inputs", type=Path, required=True, metavar="FILE", help="what `etbuild export` read")
    parser.add_argument("--lowering", type=Path, required=True, metavar="FILE", help="the facts of `etbuild lower`")
    parser.add_argument("-o", dest="directory", type=Path, required=True, metavar="DIR", help="where both go")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Checks, and writes the report and the index."""
    from etbuild.files import artifacts as files
    from etbuild.files import json_file
    from etbuild.inputs.key import describe
    from etbuild.plan.plan import Plan
    from etbuild.plan.plan import read as read_plan
    from etbuild.steps import report

    plan = read_plan(options.plan, Plan)
    read = json_file.read(options.inputs, "what an export read", "step#inputs")
    lowering = report.read_lowering(options.lowering)
    read["data"] = {**read["data"], **lowering["data"]}
    try:
        with files.staging(options.directory) as staged:
            artifacts = report.check_and_report(plan, describe(plan, read), lowering, staged)
            files.publish(artifacts, options.directory)
    except EtbuildError as error:
        raise error.located(positions_beside(options.plan)) from error
    return 0
