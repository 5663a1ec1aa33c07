"""`etbuild plan --memory`: what a build and its program take, before weights are read."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from etbuild.cli.options import add_flag, add_lowering_options, add_value, inputs, lowering_options, settings
from etbuild.errors import CheckError, EtbuildError, InputError, Problem
from etkit.local.options import add_cache, kept_cache

if TYPE_CHECKING:
    from etkit.estimating.estimate import Estimate
    from etkit.estimating.limit import Limit

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kMGT]?)B")
_OF_ARGPARSE = 2  # groups that each parser has: arguments, and options for everybody
_UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
Run = Callable[[argparse.Namespace], int]


def add(parser: argparse.ArgumentParser, run: Run) -> Run:
    """Adds the option to the verb `plan`. Returns what runs the verb, which calls `run` without the option."""
    others = [action for each in parser._action_groups[_OF_ARGPARSE:] for action in each._group_actions]
    group = parser.add_argument_group("memory")
    add_flag(
        group,
        "--memory",
        "export and lower without weights, which runs the code of the model, and print what the build and the program "
        "take; `--variant all` compares all variants. Fails if the build does not fit into the memory here",
    )
    add_value(
        group,
        "--within SIZE",
        "with --memory: the memory of the machine that builds, such as 7GB (default: of this one and its cgroup)",
        type=size_in_bytes,
    )
    add_flag(group, "--json", "with --memory: print JSON")
    add_cache(group)
    add_lowering_options(group)
    parser.usage = str(parser.usage).replace("MANIFEST", "[--memory [--within SIZE]] MANIFEST")

    def run_either(options: argparse.Namespace) -> int:
        unfit = others if options.memory else group._group_actions
        given = [each.option_strings[-1] for each in unfit if getattr(options, each.dest) != each.default]
        if given:
            raise InputError.of(
                f"these options go {'without' if options.memory else 'with'} --memory: {', '.join(given)}"
            )
        return _run(options) if options.memory else run(options)

    return run_either


def size_in_bytes(text: str) -> int:
    """The bytes of a size such as `7GB`, for argparse."""
    found = _SIZE.fullmatch(text)
    if found is None or not float(found[1]):
        raise argparse.ArgumentTypeError(f"{text} is not a size such as 7GB or 800MB")
    return int(float(found[1]) * _UNITS[found[2]])


def _run(options: argparse.Namespace) -> int:
    """Prints the estimates. Raises the errors of variants that have none, and CheckError if a build does not fit."""
    from etbuild.manifest import validate
    from etbuild.manifest.positions import locating
    from etbuild.manifest.variants import ALL
    from etkit.estimating import limit, shown
    from etkit.estimating.estimate import estimated
    from etkit.local.build import BuildOptions
    from etkit.local.progress import Steps, speak

    names = None if options.variant == ALL else [options.variant]
    loaded = validate.load_each(options.manifest, None, names, settings(options))
    speak()
    options.restart()
    steps = Steps()
    how = BuildOptions(steps.stage, kept_cache(options), options.restart, lowering_options(options), step=steps.step)
    given = inputs(options, [options.manifest.parent, *options.root])
    room = limit.of_this_machine() if options.within is None else limit.Limit(options.within, "`--within`")
    found: list[Estimate] = []
    errors: list[EtbuildError] = []
    several = len(loaded) > 1
    for each in loaded:
        try:
            with locating(each.positions):
                found.append(estimated(each, given, how, room, several=several))
        except EtbuildError as error:
            named = f"{each.data['name']}: " if several else ""
            errors.append(type(error)([replace(one, message=f"{named}{one.message}") for one in error.problems]))
    if found:
        print(json.dumps(shown.as_json(found, room), indent=2) if options.json else shown.as_text(found, room))
    if problems := [_too_large(each, room) for each in found if not each.fits(room)]:
        errors.append(CheckError(problems))
    if errors:
        worst = min(errors, key=lambda error: error.exit_code)  # a failure says more than a limit
        raise type(worst)([problem for error in errors for problem in error.problems]) from worst
    return 0


def _too_large(estimate: Estimate, room: Limit) -> Problem:
    from etkit.tables import size

    message = f"building {estimate.name} takes about {size(estimate.peak)} of memory, or a tenth more, and {room}"
    larger = "build it on a larger machine"
    return Problem(message, hint="; ".join([*estimate.advice, f"or {larger}"]) if estimate.advice else larger)
