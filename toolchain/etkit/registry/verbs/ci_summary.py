"""`etbuild ci-summary`: summarizes a build for the review of a change."""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild.cli.options import add_flag, add_parser, add_path, add_value
from etkit.registry import registry_options

if TYPE_CHECKING:
    from etkit.kept_results import Results


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "ci-summary",
        "summarize a build for the review of a change, as Markdown",
        "Shows sizes, delegation and memory of each program, and what changed and why.",
    )
    add_value(parser, "BUILD", f"the build: {registry_options.PLACE}")
    before = parser.add_mutually_exclusive_group()
    add_value(before, "--before BUILD", "the build to compare with: the same")
    add_value(
        before,
        "--before-if-any REFERENCE",
        "the package of a registry to compare with; if it is not there yet, all programs are new",
    )
    add_flag(
        parser,
        "--partial",
        "the build has only the programs that a change touches: a program that is not there was not removed",
    )
    add_path(
        parser,
        "--results DIR",
        "also show the results that `etbuild test --results` wrote here (default: those beside the build)",
    )
    add_path(parser, "--junit FILE", "also write the checks and the results as JUnit XML")
    add_path(parser, "--lockfiles DIR", "also compare each program with NAME.lock.json of this directory")
    add_flag(parser, "--fail", "exit with code 3 if a program differs from its lockfile")
    registry_options.add_access(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the summary, and writes the checks."""
    from etbuild.errors import CheckError, InputError
    from etbuild.publishing import artifacts
    from etkit import kept_results
    from etkit.registry.oci import places, reference, summary

    if options.lockfiles is None and options.fail:
        raise InputError.of("--fail needs --lockfiles, to know what differs")
    if options.lockfiles is not None and options.junit is None and not options.fail:
        raise InputError.of("--lockfiles needs --junit, where the comparison is written, or --fail")
    access = registry_options.access(options)
    with ExitStack() as opened:
        after = opened.enter_context(places.opened(options.build, access))
        before = None
        if options.before is not None:
            before = opened.enter_context(places.opened(options.before, access))
        elif options.before_if_any is not None:
            from etkit.registry.oci.registry import NoSuchPackage

            reference.parse(options.before_if_any)  # fails for a path
            with suppress(NoSuchPackage):
                before = opened.enter_context(places.opened(options.before_if_any, access))
        programs = summary.summarize(before, after, options.partial)
        locks = summary.lock_differences(programs, options.lockfiles) if options.lockfiles else {}
    left_out: list[Results] = []
    for directory in dict.fromkeys(filter(None, (_beside(options.build), options.results))):
        programs = summary.with_results(programs, directory)
        known = {each.name for each in left_out}
        left_out += [each for each in kept_results.left_out(directory) if each.name not in known]
    if options.junit is not None:
        artifacts.replace(options.junit, summary.junit(programs, locks))
    shown = summary.as_json(programs, left_out) if options.json else None
    print(summary.markdown(programs, left_out).rstrip() if shown is None else json.dumps(shown, indent=2))
    differing = [problem for error in locks.values() if error is not None for problem in error.problems]
    if options.fail and differing:
        raise CheckError(differing)
    return 0


def _beside(build: str) -> Path | None:
    """The directory that may have results of a build; None if it is elsewhere."""
    path = Path(build)
    return path if path.is_dir() else path.parent if path.is_file() else None
