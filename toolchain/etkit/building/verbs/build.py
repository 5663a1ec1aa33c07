"""`etbuild build`: builds a program from a manifest on this machine, without a build system."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild.cli.options import (
    add_declared,
    add_flag,
    add_lowering_options,
    add_manifests,
    add_parser,
    add_path,
    add_roots,
    add_settings,
    add_value,
    add_variant,
    lowering_options,
    settings,
)
from etbuild.errors import EtbuildError, InputError, printable
from etbuild.manifest.positions import locating
from etkit.building.checkpoints import add_weights, each_checkpoint, in_programs
from etkit.building.sources import NOT_USED, GivenManifest, add_source_options, given_inputs, with_written
from etkit.building.stages import STAGES
from etkit.local.options import add_cache, kept_cache
from etkit.manifests import each_manifest, may_be_several

if TYPE_CHECKING:
    from etbuild.files.writing import Artifact
    from etbuild.inputs.source_lines import SourceLines
    from etbuild.inputs.step_context import Stage
    from etbuild.key.declared import Inputs
    from etbuild.manifest.validate import Manifest
    from etbuild.results import LoweringFacts
    from etkit.local.build import BuildOptions, BuildResult


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "build",
        "build programs on this machine",
        "Steps whose inputs have not changed come from the local cache.",
    )
    add_manifests(parser, "a manifest, or a folder: each manifest in it; or FILE.py:CALLABLE, without a manifest")
    add_source_options(parser)
    add_options(parser)
    add_weights(parser)
    instead = parser.add_mutually_exclusive_group()
    add_flag(
        instead,
        "--verify-reproducible",
        "build twice from scratch, in two different environments, and fail if the artifacts differ",
    )
    add_value(
        instead,
        "--stop-after STAGE",
        f"write the result of each export stage up to this one, and build nothing else: {', '.join(STAGES)}",
        choices=STAGES,
    )
    add_flag(parser, "--html", "also write NAME.report.html, a page about the program for people")
    add_path(
        parser,
        "--against OTHER",
        "with --html: the page also shows what differs from OTHER, a .pte, an index, or a directory with an index",
    )
    add_flag(
        parser,
        "--etrecord",
        "also write NAME.etrecord, a directory with an ETRecord of each method, for ExecuTorch's Inspector",
    )
    add_flag(
        parser,
        "--origins",
        "also write NAME.lowering.json and NAME.export.lines.json, from which `etbuild profile` and Model Explorer "
        "know the graph, the layers and the lines",
    )
    add_value(
        parser, "--timeout SECONDS", "stop a build that takes longer, and name the stage that was running", type=seconds
    )
    parser.add_argument(
        "--no-server",
        dest="warm",
        action="store_false",
        help="start cold, and leave no process behind that starts later builds faster",
    )
    add_flag(parser, "--json", "print the artifacts, and which results are from the cache, as JSON")


def seconds(text: str) -> float:
    """The type of an option with a time."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return found


_NOT_USED: dict[str, Any] = {
    "stop_after": None,
    "verify_reproducible": False,
    "html": False,
    "against": None,
    "etrecord": False,
    "origins": False,
    "json": False,
    "weights": [],
    **NOT_USED,
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of all verbs that build: variants, inputs, output directory, cache and speed.

    For other verbs, the other options of `build` have the values of unused options.
    """
    parser.set_defaults(**_NOT_USED)
    add_variant(parser, several=True)
    add_settings(parser)
    add_roots(parser)
    add_declared(parser)
    add_path(
        parser,
        "-o, --out DIR",
        "directory for the artifacts (default: the current directory)",
        dest="directory",
        default=Path(),
    )
    add_cache(parser)
    add_lowering_options(parser)


def run(options: argparse.Namespace) -> int:
    """Builds a program, or one for each variant and checkpoint, and lists the artifacts."""
    if options.against is not None and not options.html:
        raise InputError.of("--against needs --html", "`etbuild diff` prints the differences of two programs")
    with with_written(options, each_manifest(options.manifests)) as manifests:
        return _run(options, manifests)


def _run(options: argparse.Namespace, manifests: Sequence[GivenManifest]) -> int:
    programs = _programs(options, manifests)
    if options.stop_after is not None:
        if len(programs) > 1:
            raise InputError.of("--stop-after writes the stages of one program: name one variant")
        _show_stages(options, *programs[0])
        return 0
    names, go_on = wanted(options), bool(options.weights) or may_be_several(options.manifests)
    built, errors = _build_each(programs, options.directory, how_to_build(options), go_on=go_on)
    if options.json:
        facts = [{"name": name, **_facts(each)} for name, each in built]
        print(json.dumps(facts if names is None or len(names) > 1 or go_on else _facts(built[0][1]), indent=2))
    elif built:
        print(table(built))
    if errors:
        raise in_programs(errors)
    return 0


def build_each(options: argparse.Namespace) -> tuple[list[tuple[str, BuildResult]], dict[str, EtbuildError]]:
    """Builds all programs of a command, and prints nothing about them. Returns what was built and the errors, both
    with the names of the programs."""
    with with_written(options, each_manifest(options.manifests)) as manifests:
        programs = _programs(options, manifests)
        return _build_each(programs, options.directory, how_to_build(options), go_on=True)


def programs(options: argparse.Namespace) -> list[tuple[Manifest, Inputs]]:
    """The programs that a command builds, each with its inputs."""
    with with_written(options, each_manifest(options.manifests)) as manifests:
        return _programs(options, manifests)


def _programs(options: argparse.Namespace, manifests: Sequence[GivenManifest]) -> list[tuple[Manifest, Inputs]]:
    """The programs to build: each manifest with each variant and each checkpoint."""
    from etbuild.manifest import validate

    names = wanted(options)
    programs: list[tuple[Manifest, Inputs]] = []
    files: dict[str, list[Path]] = {}
    for manifest in manifests:
        loaded = validate.load_each(manifest.path, manifest.name, names, settings(options))
        with locating(loaded[0].positions):
            of_manifest = each_checkpoint(loaded, given_inputs(options, manifest.directory), options.weights)
        for each, _ in of_manifest:
            files.setdefault(each.data["name"], []).append(manifest.path)
        programs += of_manifest
    _check_names(files)
    return programs


def _check_names(files: Mapping[str, Sequence[Path]]) -> None:
    """Refuses two programs that would have the same files.

    Args:
        files: For each name of a program, the manifests that have it.
    """
    for name, manifests in files.items():
        if len(manifests) > 1:
            message = f"{manifests[0]} and {manifests[1]} both make `{name}`, and would write the same files"
            raise InputError.of(message, "build them into different directories, or change a `name`")


def _build_each(
    programs: Sequence[tuple[Manifest, Inputs]], directory: Path, how: BuildOptions, *, go_on: bool
) -> tuple[list[tuple[str, BuildResult]], dict[str, EtbuildError]]:
    """Builds programs.

    Args:
        programs: The programs, with the inputs of each.
        directory: The directory for the artifacts.
        how: Where and how the builds run.
        go_on: Whether to build the other programs after an error of one, and return the error.

    Returns:
        What was built, with the names of the programs; and the errors by name.
    """
    built, errors = [], dict[str, EtbuildError]()
    for number, (loaded, given) in enumerate(programs, 1):
        name, of_all = loaded.data["name"], f"{number} of {len(programs)}"
        one = how
        if len(programs) > 1:
            stage, step = (of_program(each, f"{name} ({of_all})") for each in (how.stage, how.step))
            one = replace(how, stage=stage, step=step)
        began = time.monotonic()
        try:
            program, result = build_program(loaded, given, directory, one)
            built.append((program, replace(result, seconds=time.monotonic() - began)))
        except EtbuildError as error:
            if len(programs) == 1 and not go_on:
                raise
            if not go_on:
                raise in_programs({name: error}) from error
            errors[name] = error
    return built, errors


def of_program(stage: Stage, program: str) -> Stage:
    """Shows the stages of one of several programs, with the program's name."""

    def named(text: str) -> AbstractContextManager[None]:
        return stage(f"{program}: {text}")

    return named


def wanted(options: argparse.Namespace) -> list[str | None] | None:
    """The variants to build, or None for all of them. Without `--variant`, this is the manifest without one."""
    from etbuild.manifest.variants import ALL

    return None if ALL in options.variants else list(dict.fromkeys(options.variants)) or [None]


def how_to_build(options: argparse.Namespace) -> BuildOptions:
    """How a build runs and what else it writes, from the options."""
    from etkit.local.build import BuildOptions
    from etkit.local.progress import Steps, speak

    speak()
    shown = Steps()
    return BuildOptions(
        shown.stage,
        kept_cache(options),
        options.restart,
        lowering_options(options),
        _verify if options.verify_reproducible else None,
        partial(_write_page, against=options.against) if options.html else None,
        options.etrecord,
        options.directory if options.origins else None,
        step=shown.step,
    )


def _verify(*build: Any) -> None:
    from etkit.building.reproduce import verify  # imported in the building process, which has fixed surroundings

    verify(*build)


def _write_page(
    directory: Path, name: str, lowering: LoweringFacts, lines: SourceLines, against: Path | None
) -> Artifact:
    from etkit.inspection.page.of_build import write_page

    return write_page(directory, name, lowering, lines, against)


def build_program(loaded: Manifest, given: Inputs, directory: Path, how: BuildOptions) -> tuple[str, BuildResult]:
    """Builds one program.

    Args:
        loaded: The manifest, with a variant merged into it.
        given: The sources and data that the build may read.
        directory: The directory for the artifacts.
        how: Where and how the build runs.

    Returns:
        Its name and what was built.

    Raises:
        EtbuildError: The build failed. Its problems have their positions in the manifest.
    """
    from etbuild.plan.plan import from_manifest
    from etkit.local.build import build

    plan = from_manifest(loaded.data)
    with locating(loaded.positions):
        return plan.name, build(plan, given, directory, how)


# What to print for a stage without a result. All other stages have a result for each method.
_NOTHING = {
    "source_transform": "every method is a program that is exported already",
    "quantize": "no method is quantized by PT2E",
}


def _show_stages(options: argparse.Namespace, loaded: Manifest, given: Inputs) -> None:
    from etbuild.plan.plan import from_manifest
    from etbuild.publishing.artifacts import turn
    from etkit.building.show_stages import stop_after
    from etkit.local.progress import Steps

    plan = from_manifest(loaded.data)
    with locating(loaded.positions):
        plan.check_backends()
        options.restart()
        with turn(options.directory):  # otherwise stages of two models could be mixed
            saved = stop_after(options.stop_after, plan, given, options.directory, Steps().stage)
    if options.json:
        print(json.dumps([str(path) for paths in saved.values() for path in paths], indent=2))
        return
    for stage, paths in saved.items():
        for path in paths:
            if path.suffix == ".txt":
                print(f"# {stage}: {path.stem}\n{path.read_text('utf-8')}")
        if not paths:
            print(f"# {stage}: {_NOTHING[stage]}\n")
    print("\n".join(printable(str(path)) for paths in saved.values() for path in paths))


def _facts(built: BuildResult) -> dict[str, Any]:
    from etkit.local import agreement

    artifacts = [{**artifact.facts(), "path": str(artifact.path)} for artifact in built.artifacts]
    how: dict[str, Any] = {"steps": built.steps, "methods": built.methods, "comparisons": built.comparisons}
    how["agreement"] = agreement.to_json(built.agreement)
    return {"key": built.key, **how, "artifacts": artifacts}


def table(built: list[tuple[str, BuildResult]]) -> str:
    """The artifacts of programs for people, what came from the cache, and how well they agree with PyTorch."""
    from etkit import tables

    rows = [("artifact", "size", "sha256")]
    rows += [(str(each.path), tables.size(each.size), each.sha256[:16]) for _, one in built for each in one.artifacts]
    cached = {name: _from_cache(one) for name, one in built}
    shown = [f"{name} ({steps})" if len(built) > 1 else steps for name, steps in cached.items() if steps]
    text = tables.table(rows) + (f"\nfrom the cache: {', '.join(shown)}" if shown else "")
    compared = {name: _compared(one) for name, one in built}
    return "\n".join([text, *(f"{name}: {how}" if len(built) > 1 else how for name, how in compared.items() if how)])


def _from_cache(built: BuildResult) -> str:
    return ", ".join(name for name, how in {**built.steps, **built.methods}.items() if how == "cached")


def _compared(built: BuildResult) -> str:
    """How well the program agrees with PyTorch, and how many methods were compared if those of some are known."""
    from etkit.local.agreement import shown

    how = Counter(built.comparisons.values())
    figures = shown(built.agreement)
    lines = [f"compared with PyTorch: {figures}"] if figures else []
    if how["runtime"] != how.total():
        with_model = f", {how['model']} with the model only" if how["model"] else ""
        lines.append(f"compared: {how['runtime']} of {how.total()} methods{with_model}; known: {how['cached']}")
    return "; ".join(lines)
