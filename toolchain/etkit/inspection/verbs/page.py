"""`etbuild page`: makes the page of a program from the files of its build, for build rules."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from etbuild.cli.options import add_path, add_step_parser


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_step_parser(verbs, "page", "Make the HTML page of a program from the files of its build")
    for name, what in (
        ("report", "NAME.report.json"),
        ("index", "NAME.index.json"),
        ("lowering", "NAME.lowering.json that `etbuild lower` wrote"),
    ):
        parser.add_argument(f"--{name}", type=Path, required=True, metavar="FILE", help=f"the file {what}")
    add_path(parser, "--lines FILE", "the file that `etbuild export --lines` wrote")
    add_path(parser, "--results DIR", "the directory that `etbuild test --results` wrote to")
    add_path(parser, "-o, --out FILE", "the page to write", dest="page", required=True)


def run(options: argparse.Namespace) -> int:
    """Writes the page."""
    from etbuild.files import json_file
    from etbuild.inputs.source_lines import NO_LINES, SourceLines
    from etbuild.publishing import artifacts
    from etbuild.steps.facts import read_lowering
    from etkit import kept_results
    from etkit.inspection.page import content, render

    report = json_file.read(options.report, json_file.Format("a report", "report"))
    index = json_file.read(options.index, json_file.Format("an index", "index"))
    lines = NO_LINES if options.lines is None else SourceLines.read(options.lines)
    sha256 = next(each["sha256"] for each in index["artifacts"] if each["kind"] == "program")
    results = options.results and kept_results.of_program(options.results, index["name"], sha256)
    page = render.render(content.of_build(report, index, read_lowering(options.lowering), lines, results=results))
    artifacts.replace(options.page, page)
    return 0
