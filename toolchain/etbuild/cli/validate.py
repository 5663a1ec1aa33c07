"""`etbuild validate`: checks manifests without building anything."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from etbuild.cli.options import add_flag, add_parser, add_settings, settings
from etbuild.errors import InputError, Problem, counted


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "validate",
        help="check manifests",
        more="Prints every error of every file and variant, with its line and column. Builds nothing, and imports no "
        "model.",
    )
    parser.add_argument("manifests", nargs="+", type=Path, metavar="MANIFEST", help="a manifest, such as model.yaml")
    add_settings(parser)
    add_flag(parser, "--json", help="print the errors as JSON, on standard output")


def run(options: argparse.Namespace) -> int:
    """Prints every problem of every file."""
    from etbuild.cli.terminal import print_error
    from etbuild.manifest import validate
    from etbuild.plan.plan import from_manifest

    problems, given = [], settings(options)
    for path in options.manifests:
        try:
            for loaded in validate.load_each(path, settings=given):
                from_manifest(loaded.data)
        except InputError as error:
            problems += error.problems
    if options.json:
        print(json.dumps([_problem_json(problem) for problem in problems], indent=2))
    elif problems:
        print_error(InputError(problems))
    else:
        print(f"{counted(len(options.manifests), 'manifest')} checked: no errors")
    return InputError.exit_code if problems else 0


def _problem_json(problem: Problem) -> dict[str, Any]:
    position = problem.position
    return {
        "file": position.file if position else None,
        "line": position.line if position else None,
        "column": position.column if position else None,
        "path": list(problem.path or ()),
        "message": problem.message,
        "hint": problem.hint,
    }
