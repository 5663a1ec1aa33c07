"""`etbuild test`: compares a program in ExecuTorch's runtime with the model in eager PyTorch."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild.cli.options import (
    add_cache,
    add_flag,
    add_inputs,
    add_manifest,
    add_parser,
    add_path,
    add_rule_names,
    add_value,
    inputs,
)
from etbuild.errors import CheckError
from etkit.cli.program import add_program, build_into, check_program, load

if TYPE_CHECKING:
    from etbuild.manifest.validate import Manifest
    from etbuild.plan.plan import Plan
    from etkit.testing.results import Result


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "test",
        "compare a program in ExecuTorch's runtime with the model in eager PyTorch",
        "Builds the program, unless the cache has it. Runs each method on its example inputs, on random inputs, and on "
        "the cases of the manifest.",
    )
    add_manifest(parser)
    add_inputs(parser)
    add_program(parser, "test")
    add_value(parser, "--filter PATTERN", "run only tests with such names: `decode/*`")
    add_value(parser, "--shard I/N", "run the I-th of N parts of the tests, from 1", type=_shard, default=(0, 1))
    add_path(parser, "--junit FILE", "also write the results as JUnit XML")
    add_flag(
        parser, "--skip-unavailable", "skip the tests if the runtime here has none of a backend that the program calls"
    )
    add_flag(parser, "--no-search", "do not search for the operator that causes a failure")
    add_flag(parser, "--json", "print the results as JSON")
    add_cache(parser)
    rule = add_rule_names(parser)
    add_flag(rule, "--allow-empty-shard", "let parts of `--shard` be empty, as Bazel expects")


def _shard(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text} is not of the form I/N, with I from 1 to N")
    return int(number) - 1, int(count)


def run(options: argparse.Namespace) -> int:
    """Tests a program. Prints the results, and writes them as JUnit XML if asked for."""
    from etbuild.files import artifacts
    from etbuild.manifest.positions import locating
    from etkit.testing import results

    loaded, plan = load(options)
    options.restart()  # a crash of native code is then an error that says so
    with locating(loaded.positions):
        found = _tests(options, loaded, plan)
    if not found:
        print(f"note: part {options.shard[0] + 1} of {options.shard[1]} has no test", file=sys.stderr)
    if options.junit is not None:
        artifacts.replace(options.junit, results.junit(plan.name, found))
    shown = results.as_json(plan.name, found) if options.json else None
    print(json.dumps(shown, indent=2) if shown is not None else results.text(found))
    return CheckError.exit_code if any(each.state == "failed" for each in found) else 0


def _tests(options: argparse.Namespace, loaded: Manifest, plan: Plan) -> list[Result]:
    from etbuild.cli.terminal import Progress
    from etbuild.manifest.positions import locating
    from etbuild.plan.model_tests import tests_of
    from etbuild.runtime import program_files
    from etbuild.steps.lowering_options import processors
    from etkit.testing.results import Result
    from etkit.testing.run import TestOptions, run

    tests = tests_of(loaded.data, plan.methods)
    declared = inputs(options, [options.manifest.parent, *options.root])
    stage = Progress().stage
    how = TestOptions(
        pattern=options.filter,
        shard=options.shard,
        allow_empty_shard=options.allow_empty_shard,
        skip_unavailable=options.skip_unavailable,
        locate=not options.no_search,
        stage=stage,
        at_once=processors(),
    )
    check_program(options)
    if options.program is not None:
        return run(plan, tests, program_files.read(options.program, options.named_data), declared, how)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            with locating(loaded.positions):
                program = build_into(options, options.manifest, plan, Path(scratch))
        except CheckError as error:
            return [Result(f"checks/{number}", "failed", str(each)) for number, each in enumerate(error.problems, 1)]
        return run(plan, tests, program_files.read(program), declared, how)
