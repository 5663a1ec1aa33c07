"""`etbuild lower`: the second step of a build, for build rules."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from etbuild.errors import EtbuildError
from etbuild.verbs.options import add_data, add_parser, inputs, positions_beside


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(verbs, "lower", "lower an export into a program, for build rules")
    parser.add_argument("plan", type=Path, metavar="LOWER_PLAN")
    parser.add_argument("--export", type=Path, required=True, metavar="DIR", help="what `etbuild export` wrote")
    add_data(parser)
    parser.add_argument("-o", dest="directory", type=Path, required=True, metavar="DIR")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Lowers, and writes the program, its named data and the facts of both."""
    from etbuild import files, steps
    from etbuild import plan as plans
    from etbuild.progress import Progress

    options.settle()
    plan = plans.read(options.plan, plans.LOWER_SCHEMA)
    try:
        with files.staging(options.directory) as staged:
            artifacts = steps.lower(plan, options.export, inputs(options, []), staged, Progress().stage)
            files.publish(artifacts, options.directory)
    except EtbuildError as error:
        raise error.located(positions_beside(options.plan)) from error
    return 0
