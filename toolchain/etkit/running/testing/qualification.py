"""Tests whether a variant has what its `qualify` asks for, as `etbuild build` judges it."""

from __future__ import annotations

import argparse
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

if TYPE_CHECKING:
    from etbuild.key.declared import Inputs
    from etbuild.manifest.validate import Manifest
    from etkit.kept_results import Results
    from etplugins.runtime.program_files import ProgramFiles


def results(
    options: argparse.Namespace, manifest: Path, loaded: Manifest, files: ProgramFiles, scratch: Path
) -> list[Result]:
    """The results of the limits of a variant.

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
                return [Result("qualify", "skipped", why)]
            others[word] = _candidate(other, path, declared)
        how = BuildOptions(silent, kept_cache(options) if options.program is None else None)
        with locating(loaded.positions):
            judged: Results = plugins.load("judge", "qualify")(loaded.data["qualify"], candidate, others, how)
    except EtbuildError as error:
        return [Result("qualify", "failed", str(error))]
    return [Result(each.name, each.state, each.detail, measured=each.measured) for each in judged.results]


def _candidate(loaded: Manifest, program: Path, declared: Inputs) -> Candidate:
    index = read_index(program)[1]
    plan = from_manifest(loaded.data).replace(name=index["name"])
    return Candidate(loaded, plan, declared, program.parent, index["key"])
