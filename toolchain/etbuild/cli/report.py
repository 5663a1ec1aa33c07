"""`etbuild report`: runs the checks of the manifest. The last step of a build, for build rules."""

from __future__ import annotations

import argparse
from typing import Any

from etbuild.cli.options import add_path, add_repeatable, add_step_parser, inputs, with_positions


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_step_parser(
        verbs,
        "report",
        "Run the checks of the manifest, and write the report and the index: the last step of a build",
        "plan",
    )
    add_path(parser, "--lines FILE", help="the file that `etbuild export --lines` wrote")
    add_path(parser, "--inputs FILE", help="the file that `etbuild export --inputs` wrote", required=True)
    add_path(parser, "--lowering FILE", help="the file NAME.lowering.json that `etbuild lower` wrote", required=True)
    add_repeatable(parser, "--data NAME=FILE", help="a file of the tokenizer by the name that the manifest uses")
    add_path(parser, "-o, --out DIR", help="directory for the report and the index", dest="directory", required=True)
    add_path(
        parser, "--validation FILE", help="write that the checks passed, as Buck2 reads the result of a validation"
    )


def run(options: argparse.Namespace) -> int:
    """Runs the checks, and writes the report and the index."""
    from etbuild.files import json_file
    from etbuild.files.digests import canonical_json, file_digest
    from etbuild.inputs.source_lines import NO_LINES, SourceLines
    from etbuild.key.key import describe
    from etbuild.plan.expectations import check_tokenizer
    from etbuild.plan.plan import Plan
    from etbuild.plan.step_plans import read_plan
    from etbuild.publishing.artifacts import publish, replace, staging
    from etbuild.steps import facts, report

    plan = read_plan(options.plan, Plan)
    read = json_file.read(options.inputs, json_file.Format("what an export read", "step#inputs"))
    lowering = facts.read_lowering(options.lowering)
    declared = inputs(options, [])
    read["data"] = {**read["data"], **lowering["data"]}
    with with_positions(options, options.lines):
        check_tokenizer(plan, declared.data)
        read["data"].update({name: file_digest(file) for name, file in declared.data.items()})
        with staging(options.directory) as staged:
            lines = NO_LINES if options.lines is None else SourceLines.read(options.lines)
            artifacts = report.check_and_report(plan, describe(plan, read), lowering, declared, staged, lines)
            publish(artifacts, options.directory)
        if options.validation:
            replace(options.validation, canonical_json({"version": 1, "data": {"status": "success"}}))
    return 0
