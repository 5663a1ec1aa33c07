"""`etbuild test`: compares programs in ExecuTorch's runtime with their models in eager PyTorch."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild.cli.options import (
    add_declared,
    add_flag,
    add_manifests,
    add_parser,
    add_path,
    add_repeatable,
    add_roots,
    add_rule_names,
    add_settings,
    add_value,
    add_variant,
    inputs,
    settings,
)
from etbuild.errors import CheckError, EtbuildError, InputError
from etkit.building.verbs.build import wanted
from etkit.local.options import add_cache
from etkit.local.progress import speak
from etkit.manifests import each_manifest, may_be_several
from etkit.program import add_program, build_into, check_program

if TYPE_CHECKING:
    from collections.abc import Sequence

    from etbuild.manifest.validate import Manifest
    from etbuild.plan.plan import Plan
    from etkit.running.testing.results import Result


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "test",
        "compare programs in ExecuTorch's runtime with their models in eager PyTorch",
        "Builds each program, unless the cache has it. Runs each method on its example inputs, on random inputs, and "
        "on the cases of the manifest.",
    )
    add_manifests(parser)
    add_variant(parser, several=True)
    add_settings(parser)
    add_roots(parser)
    add_declared(parser)
    add_program(parser, "test")
    add_value(parser, "--filter PATTERN", "run only tests with such names: `decode/*`")
    add_value(parser, "--shard I/N", "run the I-th of N parts of the tests, from 1", type=_shard, default=(0, 1))
    add_path(parser, "--junit FILE", "also write the results as JUnit XML")
    add_path(
        parser,
        "--results DIR",
        "also write them as NAME.results.json, beside the program: its page and `etbuild ci-summary` show them",
    )
    add_flag(
        parser, "--skip-unavailable", "skip the tests if the runtime here has none of a backend that the program calls"
    )
    add_flag(parser, "--no-search", "do not search for the operator that causes a failure")
    add_flag(parser, "--json", "print the results as JSON")
    add_cache(parser)
    rule = add_rule_names(parser)
    add_flag(rule, "--allow-empty-shard", "let parts of `--shard` be empty, as Bazel expects")
    add_repeatable(
        rule, "--compared-with FILE", "the .pte of another program of the manifest, which `qualify` names", type=Path
    )


def _shard(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text} is not of the form I/N, with I from 1 to N")
    return int(number) - 1, int(count)


@dataclass(frozen=True)
class _Tested:
    """A program to test: the file of its manifest, the manifest with a variant merged into it, and the plan."""

    manifest: Path
    loaded: Manifest
    plan: Plan


def run(options: argparse.Namespace) -> int:
    """Tests programs. Prints the results, and writes them as JUnit XML if asked for."""
    from etbuild.publishing import artifacts
    from etkit.running.testing import results

    programs = _programs(options)
    speak()
    options.restart()  # then a crash of native code is reported as an error
    names = wanted(options)
    several = names is None or len(names) > 1 or may_be_several(options.manifests)
    if not several:
        found = [(each.plan.name, _located(options, each)) for each in programs]
    else:
        found = [(each.plan.name, _in_fork(options, each)) for each in programs]
    if options.filter is not None and (several or options.shard[1] == 1) and not any(of_one for _, of_one in found):
        raise InputError.of(f"no program has a test with the name `{options.filter}`")
    if not any(of_one for _, of_one in found):
        print(f"note: part {options.shard[0] + 1} of {options.shard[1]} has no test", file=sys.stderr)
    if options.junit is not None:
        artifacts.replace(options.junit, results.junit(found))
    if options.json:
        shown = [results.as_json(*each) for each in found]
        print(json.dumps(shown if several else shown[0], indent=2))
    else:
        print(results.text(found))
    return CheckError.exit_code if any(each.state == "failed" for _, of_one in found for each in of_one) else 0


def _programs(options: argparse.Namespace) -> Sequence[_Tested]:
    """The programs to test. Raises InputError if a manifest has problems, or if the options fit one program only."""
    from etbuild.manifest import validate
    from etbuild.plan.plan import from_manifest

    found = []
    for manifest in each_manifest(options.manifests):
        for loaded in validate.load_each(manifest, options.manifest_name, wanted(options), settings(options)):
            plan = from_manifest(loaded.data)
            renamed = plan if options.program_name is None else plan.replace(name=options.program_name)
            found.append(_Tested(manifest, loaded, renamed))
    if options.program is not None and len(found) > 1:
        raise InputError.of("--program tests one program: name one manifest and one variant")
    return found


def _in_fork(options: argparse.Namespace, program: _Tested) -> list[Result]:
    """The results of one of several programs, from a fork: code of its model cannot affect the next one.

    The fork goes on after its first step, so it is no `ending_process`.
    """
    from etbuild.processes import forked
    from etkit.running.testing.results import Result

    name = f"the tests of {program.plan.name}"
    try:
        results: list[Result] = forked.run({name: partial(_located, options, program, several=True)}, 1)[name]
    except EtbuildError as error:
        return [Result("build", "failed", str(error))]
    return results


def _located(options: argparse.Namespace, program: _Tested, several: bool = False) -> list[Result]:
    """The results of a program. Errors get their positions in the manifest."""
    from etbuild.manifest.positions import locating

    with locating(program.loaded.positions):
        return _tests(options, program, several)


def _tests(options: argparse.Namespace, program: _Tested, several: bool) -> list[Result]:
    from etbuild.manifest.positions import locating
    from etbuild.steps.lowering_options import processors
    from etkit.building.programs import of_program
    from etkit.kept_results import Kept, Results
    from etkit.local.progress import Steps
    from etkit.running.testing import qualification
    from etkit.running.testing.results import Result
    from etkit.running.testing.run import TestOptions, run
    from etplugins.model_tests.parts import tests_of
    from etplugins.runtime import program_files

    plan, stage = program.plan, Steps().stage
    tests = tests_of(program.loaded.data, plan.methods)
    declared = inputs(options, [program.manifest.parent, *options.root])
    qualifies = qualification.is_wanted(program.loaded, plan, options.filter)
    how = TestOptions(
        pattern=options.filter,
        may_be_none=several or qualifies,  # another program may have a test of this name, or `qualify`
        shard=options.shard,
        allow_empty_shard=options.allow_empty_shard or several,
        skip_unavailable=options.skip_unavailable,
        locate=not options.no_search,
        stage=of_program(stage, plan.name) if several else stage,
        at_once=processors(),
        positions=program.loaded.positions,
    )
    check_program(options)
    with tempfile.TemporaryDirectory() as scratch:
        if options.program is not None:
            files = program_files.read(options.program, options.named_data)
        else:
            try:
                with locating(program.loaded.positions):
                    files = program_files.read(build_into(options, program.manifest, plan, Path(scratch)))
            except CheckError as error:
                failed = enumerate(error.problems, 1)
                return [Result(f"checks/{number}", "failed", str(each)) for number, each in failed]
        found = run(plan, tests, files, declared, how)
        if qualifies and options.shard[0] == 0:
            found += qualification.results(options, program.manifest, program.loaded, files, Path(scratch))
    if options.results is not None:
        kept = [Kept(each.name, each.state, each.detail, each.measured) for each in found]
        Results(plan.name, files.facts["sha256"], kept).write(options.results)
    return found
