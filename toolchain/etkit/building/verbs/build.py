"""`etbuild build`: builds a program from a manifest on this machine, without a build system."""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
from etbuild.errors import InputError, counted, printable
from etbuild.manifest.positions import locating
from etkit.building.checkpoints import add_weights, in_programs
from etkit.building.sources import NOT_USED, GivenManifest, add_source_options, given_inputs, with_written
from etkit.building.stages import STAGES
from etkit.local.options import add_cache, kept_cache
from etkit.manifests import each_manifest, may_be_several

if TYPE_CHECKING:
    from etbuild.files.writing import Artifact
    from etbuild.inputs.source_lines import SourceLines
    from etbuild.key.declared import Inputs
    from etbuild.manifest.validate import Manifest
    from etbuild.results import LoweringFacts
    from etkit.building.programs import Outcome, Wanted
    from etkit.kept_results import Results
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
    """Builds a program, or one for each variant and checkpoint, and lists the artifacts.

    A variant that does not have what its `qualify` asks for is left out. If the command names it, that is an error.
    """
    if options.against is not None and not options.html:
        raise InputError.of("--against needs --html", "`etbuild diff` prints the differences of two programs")
    with with_written(options, each_manifest(options.manifests)) as manifests:
        return _run(options, manifests)


def _run(options: argparse.Namespace, manifests: Sequence[GivenManifest]) -> int:
    from etkit.building import programs as building

    found = _programs(options, manifests)
    if options.stop_after is not None:
        if len(found) > 1:
            raise InputError.of("--stop-after writes the stages of one program: name one variant")
        _show_stages(options, found[0].manifest, found[0].inputs)
        return 0
    names = wanted(options)
    several = names is None or len(names) > 1
    go_on = several or bool(options.weights) or may_be_several(options.manifests)
    outcome = building.build_each(found, options.directory, how_to_build(options), go_on=go_on)
    if options.json:
        facts = [*_all_facts(outcome)]
        only = {key: value for key, value in facts[0].items() if key != "name"} if facts else {}
        print(json.dumps(facts if go_on else only, indent=2))
    elif text := table(outcome):
        print(text)
    if outcome.errors:
        raise in_programs(outcome.errors)
    return 0


def build_each(options: argparse.Namespace) -> Outcome:
    """Builds all programs of a command, and prints nothing about them. Returns what has become of them."""
    from etkit.building import programs as building

    with with_written(options, each_manifest(options.manifests)) as manifests:
        found = _programs(options, manifests)
        return building.build_each(found, options.directory, how_to_build(options), go_on=True)


def programs(options: argparse.Namespace) -> list[Wanted]:
    """The programs that a command builds, each with its inputs."""
    with with_written(options, each_manifest(options.manifests)) as manifests:
        return _programs(options, manifests)


def _programs(options: argparse.Namespace, manifests: Sequence[GivenManifest]) -> list[Wanted]:
    """The programs to build: each manifest with each variant and each checkpoint."""
    from etbuild.manifest import validate
    from etkit.building.programs import programs_of

    names = wanted(options)
    found: list[Wanted] = []
    files: dict[str, list[Path]] = {}
    for manifest in manifests:
        loaded = validate.load_each(manifest.path, manifest.name, names, settings(options))
        file, given = (manifest.path, manifest.name), given_inputs(options, manifest.directory)
        of_manifest = programs_of(loaded, file, names, settings(options), given, options.weights)
        for each in of_manifest:
            files.setdefault(each.name, []).append(manifest.path)
        found += of_manifest
    _check_names(files)
    return found


def _check_names(files: Mapping[str, Sequence[Path]]) -> None:
    """Refuses two programs that would have the same files.

    Args:
        files: For each name of a program, the manifests that have it.
    """
    for name, manifests in files.items():
        if len(manifests) > 1:
            message = f"{manifests[0]} and {manifests[1]} both make `{name}`, and would write the same files"
            raise InputError.of(message, "build them into different directories, or change a `name`")


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
        partial(_write_page, against=options.against, results=options.directory) if options.html else None,
        options.etrecord,
        options.directory if options.origins else None,
        step=shown.step,
    )


def _verify(*build: Any) -> None:
    from etkit.building.reproduce import verify  # imported in the building process, which has fixed surroundings

    verify(*build)


def _write_page(
    directory: Path,
    name: str,
    lowering: LoweringFacts,
    lines: SourceLines,
    notes: list[str],
    against: Path | None,
    results: Path,
) -> Artifact:
    from etkit.inspection.page.of_build import write_page

    return write_page(directory, name, lowering, lines, against, results, notes)


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


def _all_facts(outcome: Outcome) -> Iterator[dict[str, Any]]:
    """What was built, what was left out, and what failed, for `--json`."""
    for name, built in outcome.built:
        yield {"name": name, **_facts(built), **_judgement(outcome.judged.get(name))}
    for name, error in outcome.errors.items():
        if name not in outcome.judged:
            yield {"name": name, "error": str(error)}
    for results in outcome.left_out:
        yield {"name": results.name, **_judgement(results)}


def _facts(built: BuildResult) -> dict[str, Any]:
    from etkit.local import agreement

    artifacts = [{**artifact.facts(), "path": str(artifact.path)} for artifact in built.artifacts]
    how: dict[str, Any] = {"steps": built.steps, "methods": built.methods, "comparisons": built.comparisons}
    how["agreement"] = agreement.to_json(built.agreement)
    return {"key": built.key, **how, "artifacts": artifacts}


def _judgement(results: Results | None) -> dict[str, Any]:
    if results is None:
        return {}
    return {"qualifies": results.qualifies, "results": results.listed}


def table(outcome: Outcome) -> str:
    """The artifacts of programs for people, what came from the cache, how well they agree with PyTorch, and what was
    left out; empty if nothing was built."""
    from etkit import tables
    from etkit.building.programs import reasons

    built = outcome.built
    rows = [("artifact", "size", "sha256")]
    rows += [(str(each.path), tables.size(each.size), each.sha256[:16]) for _, one in built for each in one.artifacts]
    several = len(built) + len(outcome.left_out) + len(outcome.errors) > 1
    cached = {name: _from_cache(one) for name, one in built}
    shown = [f"{name} ({steps})" if several else steps for name, steps in cached.items() if steps]
    compared = {name: _compared(one) for name, one in built}
    failed = [name for name in outcome.errors if name not in outcome.judged]
    lines = [
        *([tables.table(rows)] if built else []),
        *([f"from the cache: {', '.join(shown)}"] if shown else []),
        *(f"{name}: {how}" if several else how for name, how in compared.items() if how),
        *(f"left out: {each.name} ({'; '.join(what for _, what in reasons(each))})" for each in outcome.left_out),
        *([f"failed: {', '.join(failed)}"] if failed and built else []),
    ]
    return "\n".join(lines)


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
        of = counted(how.total(), "method")
        lines.append(f"compared: {how['runtime']} of {of}{with_model}; known: {how['cached']}")
    return "; ".join(lines)
