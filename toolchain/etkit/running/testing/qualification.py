"""Tests whether a variant has what its `qualify` asks for, as `etbuild build` judges it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from etbuild import plugins
from etbuild.cli.options import inputs, settings
from etbuild.errors import EtbuildError
from etbuild.inputs.step_context import silent
from etbuild.manifest import validate
from etbuild.manifest.positions import locating
from etbuild.plan.plan import from_manifest
from etkit.building.programs import BASE, Candidate, compared_with
from etkit.find_index import read_index
from etkit.local.build import BuildOptions
from etkit.local.options import kept_cache
from etkit.program import build_into
from etkit.running.testing.results import Result
from etplugins.model_tests.parts import Qualify

if TYPE_CHECKING:
    from etbuild.key.declared import Inputs
    from etbuild.manifest.validate import Manifest
    from etbuild.plan.plan import Plan
    from etkit.kept_results import Results
    from etplugins.runtime.program_files import ProgramFiles


_ALL = "qualify"  # a pattern that fits it is one for all results; the result that nothing could be judged has it


def is_wanted(loaded: Manifest, plan: Plan, pattern: str | None) -> bool:
    """Whether a pattern for names of tests fits one of the results of a manifest."""
    return "qualify" in loaded.data and any(_fits(name, pattern) for name in _names(loaded, plan))


def _names(loaded: Manifest, plan: Plan) -> Iterator[str]:
    """The names that results have. Methods that the base has not are among them."""
    qualify = Qualify.of_manifest(loaded.data["qualify"])
    yield from (f"qualify/{key}" for key in ("size", "memory") if getattr(qualify, key) is not None)
    if qualify.sqnr is not None:
        yield from (f"qualify/sqnr/{method}" for method in plan.methods)
    yield from (f"qualify/agreement/{each.measure}" for each in qualify.agreement or ())


def _fits(name: str, pattern: str | None) -> bool:
    return pattern is None or fnmatchcase(name, pattern) or fnmatchcase(_ALL, pattern)


def results(
    options: argparse.Namespace, manifest: Path, loaded: Manifest, files: ProgramFiles, scratch: Path
) -> list[Result]:
    """The results of the limits of a variant that fit the option `--filter`.

    Args:
        options: The options of `etbuild test`. They name the other programs, if they name this one.
        manifest: The file of the manifest.
        loaded: The manifest, with the variant merged into it.
        files: The program.
        scratch: An existing directory for the builds of others.
    """
    declared = inputs(options, [manifest.parent, *options.root])
    given = {read_index(path)[1]["name"]: path for path in options.compared_with}
    others: dict[str, Candidate] = {}
    try:
        candidate = _candidate(loaded, files.program, declared)
        for word in sorted(compared_with(loaded)):
            variant = None if word == BASE else word
            other = validate.load(manifest, options.manifest_name, variant, settings(options))
            name = other.data["name"]
            if options.program is None:
                with locating(other.positions):
                    path = build_into(options, manifest, from_manifest(other.data), scratch / word)
            elif name in given:
                path = given[name]
            else:
                why = f"it is compared with `{name}`: name its target under `compared_with`"
                return [Result(_ALL, "skipped", why)]
            others[word] = _candidate(other, path, declared)
        how = BuildOptions(silent, kept_cache(options) if options.program is None else None)
        with locating(loaded.positions):
            judged: Results = plugins.load("judge", "qualify")(loaded.data["qualify"], candidate, others, how)
    except EtbuildError as error:
        return [Result(_ALL, "failed", str(error))]
    return [
        Result(each.name, each.state, each.detail, measured=each.measured)
        for each in judged.results
        if _fits(each.name, options.filter)
    ]


def _candidate(loaded: Manifest, program: Path, declared: Inputs) -> Candidate:
    index = read_index(program)[1]
    plan = from_manifest(loaded.data).replace(name=index["name"])
    return Candidate(loaded, plan, declared, program.parent, index["key"])
