"""`etbuild profile`: shows where the time of a method goes."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild.cli.options import add_flag, add_inputs, add_parser, add_path, add_value, settings, whole
from etbuild.errors import InputError, counted
from etkit.local.options import add_cache
from etkit.local.progress import speak
from etkit.program import add_named_data, build_into

if TYPE_CHECKING:
    from etbuild.results import LoweringFacts
    from etkit.inspection.profile import Profile
    from etplugins.runtime.program_files import ProgramFiles

_MOST_CALLS = 10_000
_UNITS = ("ns", "us", "ms", "s", "cycles")


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "profile",
        "show where the time of a method goes, by operator",
        "Runs the method in ExecuTorch's runtime, or reads the ETDump of a device. The inputs are those of `etbuild "
        "run`. Lines of the model are known for a manifest, and for a program in the directory where Bazel built it.",
    )
    parser.add_argument("target", type=Path, metavar="PROGRAM|MANIFEST", help="a .pte, or a manifest to build first")
    add_value(parser, "METHOD", "the method (default: the only one)", nargs="?")
    parser.add_argument("inputs", nargs="*", metavar="INPUT", help="its inputs, in the order of the program")
    add_value(parser, "--calls N", "number of measured calls (default: 20)", type=whole(1, _MOST_CALLS), default=20)
    add_value(
        parser,
        "--warm-up N",
        "number of calls before them that do not count (default: 2; with --from: 0)",
        type=whole(0, _MOST_CALLS),
    )
    add_path(parser, "--etdump FILE", "also write the ETDump of the runtime to FILE")
    add_path(parser, "--from FILE", "run nothing: read the ETDump that a device wrote", dest="dump")
    parser.add_argument(
        "--clock", choices=_UNITS, default="ns", help="with --from: unit of the device's clock (default: ns)"
    )
    add_named_data(parser, "the program")
    add_flag(parser, "--json", "print JSON")
    add_path(parser, "--html PAGE", "write the page of the program, with the times, to PAGE")
    building = parser.add_argument_group("for a manifest")
    add_inputs(building)
    add_cache(building)


def run(options: argparse.Namespace) -> int:
    """Prints where the time goes, and writes the page and the ETDump if asked for."""
    from etbuild.surroundings.library_output import library_messages_off

    _check(options)
    speak()
    options.restart()  # then a crash of the runtime is reported as an error
    with _program(options) as program:
        with library_messages_off():
            from etkit.inspection import profile
            from etplugins.runtime import program_files
        files = program_files.read(program, options.named_data)
        method = options.method or files.only_method()
        files.method(method)
        lowering = _lowering(files)
        found = _profile(options, files, method, lowering)
        if options.html is not None:
            _write_page(options.html, files, lowering, found)
    print(json.dumps(profile.as_json(found), indent=2) if options.json else profile.text(found))
    return 0


def _check(options: argparse.Namespace) -> None:
    """Refuses options that do not go together."""
    if options.dump is not None and options.etdump is not None:
        raise InputError.of("--etdump writes the records of the runtime, and --from records nothing", "leave one out")
    if options.dump is not None and options.inputs:
        raise InputError.of("--from runs nothing, so it takes no inputs", "leave the inputs out")
    if options.dump is None and options.clock != "ns":
        raise InputError.of("--clock goes with --from", "the runtime here counts nanoseconds")
    building = [options.variant, *options.settings, *options.root, *options.source, *options.data]
    if _is_program(options.target) and any(each is not None for each in building):
        raise InputError.of(f"{options.target} is built already", "name the manifest, or leave out options for it")
    if not _is_program(options.target) and options.named_data:
        raise InputError.of("--named-data goes with a .pte")


def _is_program(target: Path) -> bool:
    return target.suffix == ".pte"


@contextmanager
def _program(options: argparse.Namespace) -> Iterator[Path]:
    """The `.pte` to run. If the target is a manifest, it is built into a directory that is removed at the end."""
    if _is_program(options.target):
        yield options.target
        return
    from etbuild.manifest import validate
    from etbuild.manifest.positions import locating
    from etbuild.plan.plan import from_manifest

    loaded = validate.load(options.target, None, options.variant, settings(options))
    plan = from_manifest(loaded.data)
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        with locating(loaded.positions):  # `origins` has files that say where the instructions come from
            program = build_into(options, options.target, plan, directory, origins=directory)
        yield program


def _profile(options: argparse.Namespace, files: ProgramFiles, method: str, lowering: LoweringFacts | None) -> Profile:
    from etbuild.publishing import artifacts
    from etkit.inspection import etdump, profile

    warm_up = options.warm_up if options.warm_up is not None else 0 if options.dump is not None else 2
    with tempfile.TemporaryDirectory() as scratch:
        dump = options.dump
        if dump is None:
            dump = Path(scratch) / "events.etdp"
            _record(options, files, method, warm_up + options.calls, dump)
        if options.etdump is not None:
            artifacts.replace(options.etdump, dump.read_bytes())
        return profile.summarize(etdump.read(dump), _subject(files, method, lowering), options.clock, warm_up)


def _record(options: argparse.Namespace, files: ProgramFiles, method: str, calls: int, path: Path) -> None:
    import torch

    torch.set_num_threads(1)
    from etkit import arguments
    from etkit.inspection.recording import record
    from etkit.local.progress import Steps

    given = arguments.inputs(method, files.method(method), options.inputs)
    with Steps().stage(f"run {method} {counted(calls, 'time')}"):
        record(files, method, given, calls, path)


def _subject(files: ProgramFiles, method: str, lowering: LoweringFacts | None) -> Any:
    from etbuild.files import instructions, program_file, regular_files
    from etkit.inspection.profile import Origins, Subject

    with regular_files.opened(files.program) as file:
        plans = program_file.read_program(file.read()).program.execution_plan
    (plan,) = (plan for plan in plans if plan.name == method)
    origins = Origins()
    if lowering is not None and method in lowering["instructions"] and method in lowering["graphs"]:
        nodes = lowering["graphs"][method]["nodes"]
        layers = {node["name"]: node["layer"] for node in nodes if "name" in node and "layer" in node}
        origins = Origins(lowering["instructions"][method], layers, _lines(files.program))
    return Subject(files.program.name, method, instructions.listed(plan), origins)


def _lowering(files: ProgramFiles) -> LoweringFacts | None:
    """The facts of the lowering that made a program, if they are beside it."""
    from etbuild.steps.facts import read_lowering

    path = files.program.with_suffix(".lowering.json")
    if not path.is_file():
        return None
    facts = read_lowering(path)
    return facts if any(each["sha256"] == files.facts["sha256"] for each in facts["artifacts"]) else None


def _lines(program: Path) -> Any:
    from etbuild.inputs.source_lines import SourceLines

    return SourceLines.read(program.with_suffix(".export.lines.json"))


def _write_page(path: Path, files: ProgramFiles, lowering: LoweringFacts | None, found: Profile) -> None:
    from dataclasses import replace

    from etbuild.publishing import artifacts
    from etkit.find_index import index_beside
    from etkit.inspection.page import of_build, of_file, render

    program = files.program
    reported = index_beside(program, files.facts["sha256"]) and program.with_suffix(".report.json").is_file()
    if lowering is not None and reported:
        try:
            shown = of_build.shown(program.parent, program.stem, lowering, _lines(program))
        except (LookupError, TypeError, ValueError) as error:  # the file may have any content
            raise InputError.of(f"{program.with_suffix('.lowering.json')}: the file is damaged: {error!r}") from error
    else:
        shown = of_file.shown(program)
    artifacts.replace(path, render.render(replace(shown, profile=found)))
