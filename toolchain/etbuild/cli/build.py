"""`etbuild build`: builds a program from a manifest on this machine, without a build system."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild.cli.options import (
    add_cache_directory,
    add_declared,
    add_effort,
    add_manifest,
    add_parser,
    add_roots,
    cache,
    effort,
    inputs,
)
from etbuild.errors import EtbuildError, printable
from etbuild.steps.stages import STAGES

if TYPE_CHECKING:
    from etbuild.build import BuildResult
    from etbuild.inputs.declared import Inputs
    from etbuild.plan.plan import Plan


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "build",
        "build a program on this machine",
        "Steps whose inputs have not changed come from the local cache.",
    )
    add_manifest(parser)
    add_options(parser)
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--verify-reproducible",
        action="store_true",
        help="build twice from scratch, in two different environments, and fail if the artifacts differ",
    )
    instead.add_argument(
        "--stop-after",
        choices=STAGES,
        metavar="STAGE",
        help=f"write the result of each export stage up to this one, and build nothing else: {', '.join(STAGES)}",
    )
    parser.add_argument(
        "--timeout",
        type=_seconds,
        metavar="SECONDS",
        help="stop a build that takes longer, and name the stage that was running",
    )
    parser.add_argument(
        "--json", action="store_true", help="print what was built, and what came from the cache, as JSON"
    )
    parser.set_defaults(run=run)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return seconds


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that `build` and `watch` share: inputs, output directory, cache and speed."""
    add_roots(parser)
    add_declared(parser)
    parser.add_argument(
        "-o",
        dest="directory",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="directory for the artifacts (default: the current directory)",
    )
    where = parser.add_mutually_exclusive_group()
    add_cache_directory(where)
    where.add_argument("--no-cache", action="store_true", help="do not read or write the local cache")
    add_effort(parser)


def run(options: argparse.Namespace) -> int:
    """Builds a program and lists its artifacts."""
    from etbuild.build import BuildOptions, build
    from etbuild.cli.terminal import Progress
    from etbuild.manifest import validate
    from etbuild.plan.plan import from_manifest

    loaded = validate.load(options.manifest)
    plan = from_manifest(loaded.data)
    try:
        declared = inputs(options, [options.manifest.parent, *options.root])
        if options.stop_after is not None:
            return _show_stages(options, plan, declared)
        kept = None if options.no_cache else cache(options.cache_dir)
        how = BuildOptions(Progress().stage, kept, options.restart, effort(options), options.verify_reproducible)
        built = build(plan, declared, options.directory, how)
    except EtbuildError as error:
        from etbuild.manifest.positions import located

        raise located(error, loaded.positions) from error
    print(json.dumps(_facts(built), indent=2) if options.json else _table(built))
    return 0


# What to print for a stage without a result. Every other stage has a result for every method.
_NOTHING = {
    "source_transform": "every method is a program that is exported already",
    "quantize": "no method is quantized by PT2E",
}


def _show_stages(options: argparse.Namespace, plan: Plan, declared: Inputs) -> int:
    from etbuild.cli.terminal import Progress
    from etbuild.steps.show_stages import stop_after

    plan.check_backends()
    options.restart()
    saved = stop_after(options.stop_after, plan, declared, options.directory, Progress().stage)
    if options.json:
        print(json.dumps([str(path) for paths in saved.values() for path in paths], indent=2))
        return 0
    for stage, paths in saved.items():
        for path in paths:
            if path.suffix == ".txt":
                print(f"# {stage}: {path.stem}\n{path.read_text('utf-8')}")
        if not paths:
            print(f"# {stage}: {_NOTHING[stage]}\n")
    print("\n".join(printable(str(path)) for paths in saved.values() for path in paths))
    return 0


def _facts(built: BuildResult) -> dict[str, Any]:
    artifacts = [{**artifact.facts(), "path": str(artifact.path)} for artifact in built.artifacts]
    return {"key": built.key, "steps": built.steps, "methods": built.methods, "artifacts": artifacts}


def _table(built: BuildResult) -> str:
    from etbuild.analysis.tables import size, table

    rows = [("artifact", "size", "sha256")]
    rows += [(str(artifact.path), size(artifact.size), artifact.sha256[:16]) for artifact in built.artifacts]
    cached = [name for name, how in {**built.steps, **built.methods}.items() if how == "cached"]
    return table(rows) + (f"\nfrom the cache: {', '.join(cached)}" if cached else "")
