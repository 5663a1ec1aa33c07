"""Runs the tests of a program, each case in processes of its own."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from etbuild import releases
from etbuild.errors import EtbuildError, InputError, Positions, counted
from etbuild.files import json_file
from etbuild.guard.reads import watched_reads
from etbuild.inputs.step_context import Stage, StepContext, silent
from etbuild.inputs.user_code import importable
from etbuild.key.declared import Inputs
from etbuild.key.import_graph import used_sources
from etbuild.key.key import data_in_key
from etbuild.key.toolchain import check_installed
from etbuild.manifest.positions import located
from etbuild.plan.plan import Plan
from etbuild.processes.import_without_gc import import_without_gc
from etbuild.surroundings.library_output import library_messages_off, stdout_for_results
from etkit.running.testing.results import Result
from etplugins.model_tests.parts import TestPlan
from etplugins.runtime.program_files import ProgramFiles

if TYPE_CHECKING:
    from etkit.running.testing.cases import Tester


@dataclass(frozen=True)
class TestOptions:
    """Which tests run, and how.

    Attributes:
        pattern: A pattern for the names of tests, in which `*` stands for any text; None for all tests.
        may_be_none: Whether a pattern may fit no test. Otherwise that is an error.
        shard: The number of this shard from 0, and the number of shards.
        allow_empty_shard: Whether there may be more shards than tests. Otherwise that is an error.
        skip_unavailable: Whether to skip a program if the runtime here lacks its backend. Otherwise that is an error.
        locate: Whether to search for the operator or the layer that causes a failure.
        stage: Is called for each stage, to show progress.
        at_once: The number of processes that compute at the same time.
        positions: The positions of the manifest's values, for messages.
    """

    __test__ = False  # tells pytest that this is no test

    pattern: str | None = None
    may_be_none: bool = False
    shard: tuple[int, int] = (0, 1)
    allow_empty_shard: bool = False
    skip_unavailable: bool = False
    locate: bool = True
    stage: Stage = field(default=silent)
    at_once: int = 1
    positions: Positions = field(default_factory=dict)


def run(plan: Plan, tests: TestPlan, files: ProgramFiles, inputs: Inputs, options: TestOptions) -> list[Result]:
    """Tests a program.

    Args:
        plan: What the program was built from.
        tests: What is tested.
        files: The program.
        inputs: The declared inputs, of the build and of the tests.
        options: Which tests run, and how.

    Returns:
        The results, in the order of the names of tests.

    Raises:
        InputError: A declared input is missing or does not fit, no test has a wanted name, there are more shards than
            tests, or the runtime here does not have a backend of the program.
        BuildError: The model cannot be made.
    """
    with opened(plan, tests, files, inputs, options) as tester:
        return _run(tester, files, options)


@contextmanager
def opened(plan: Plan, tests: TestPlan, files: ProgramFiles, inputs: Inputs, options: TestOptions) -> Iterator[Tester]:
    """Makes the tester of a program, whose model can be run inside. Arguments and errors are those of `run`."""
    used = used_sources(inputs, plan.export_plan, tests.callables)
    check_installed(used.packages)
    declared = inputs.only(data_in_key(inputs, {**tests.data_names, **plan.data_names}))
    with library_messages_off(used.sources), stdout_for_results():
        releases.check()
        with options.stage("import ExecuTorch"), import_without_gc("executorch.exir"):
            from etbuild.surroundings import arithmetic
            from etbuild.surroundings.random_seeds import seed
            from etkit.running.testing.cases import Tester

        arithmetic.leave_out_other_libraries()
        seed(plan.export_plan.model.seed)  # modules may draw numbers when they are imported
        with importable(used, declared.data.values(), watched_reads):
            yield Tester(plan, tests, files, StepContext(declared, options.stage), options)


def _run(tester: Tester, files: ProgramFiles, options: TestOptions) -> list[Result]:
    missing = tester.unavailable()
    if missing and not options.skip_unavailable:
        hint = "test it on its device; in a suite, `--skip-unavailable` skips such programs"
        raise InputError.of(f"the runtime here has no backend `{missing[0]}`, which {files.program.name} calls", hint)
    every: list[tuple[str, Callable[[], Result]]] = [*_checks(files)]
    if missing:
        reason = f"the runtime here has no backend `{missing[0]}`"
        every += [(name, partial(Result, name, "skipped", reason)) for name in tester.names()]
    else:
        every += tester.tests(options.locate)
    names = [name for name, _ in every]
    chosen = [each for each in every if options.pattern is None or fnmatch.fnmatchcase(each[0], options.pattern)]
    if not chosen and options.may_be_none:
        return []
    if not chosen:
        raise InputError.of(f"no test has the name `{options.pattern}`", f"the tests are {', '.join(names)}")
    shard, shards = options.shard
    if shards > len(chosen) and not options.allow_empty_shard:
        message = f"--shard {shard + 1}/{shards}: there are fewer tests than parts, so some parts would be empty"
        raise InputError.of(message, f"use at most {counted(len(chosen), 'part')}")
    results = []
    for name, test in chosen[shard::shards]:
        with options.stage(f"test {name}"):
            results.append(_timed(name, test, options.positions))
    return results


def _timed(name: str, test: Callable[[], Result], positions: Positions) -> Result:
    start = time.monotonic()
    try:
        result = test()
    except EtbuildError as error:
        result = Result(name, "failed", str(located(error, positions)))
    return replace(result, seconds=time.monotonic() - start)


def _checks(files: ProgramFiles) -> Iterator[tuple[str, Callable[[], Result]]]:
    """The checks of the build, from the report beside the program."""
    report = files.program.with_name(f"{files.program.name.removesuffix('.pte')}.report.json")
    if not report.is_file():
        return
    for check in json_file.read(report, json_file.Format("a report", "report"))["checks"]:
        name = "/".join(["checks", check["check"], *([check["of"]] if "of" in check else [])])
        yield name, partial(_of_check, name, check["actual"], check["limit"])


def _of_check(name: str, actual: float, limit: float) -> Result:
    right = actual >= limit if name.startswith("checks/min_") else actual <= limit
    return Result(name, "passed" if right else "failed", f"{actual:,} (limit {limit:,})")
