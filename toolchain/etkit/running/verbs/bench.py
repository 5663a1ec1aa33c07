"""`etbuild bench`: measures how long calls of a program take in ExecuTorch's runtime, and what memory they need."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild.cli.options import (
    add_inputs,
    add_parser,
    add_path,
    add_repeatable,
    add_rule_names,
    add_value,
    count,
    inputs,
    named_value,
    settings,
    whole,
)
from etbuild.errors import CheckError, InputError
from etkit.building.verbs.build import seconds
from etkit.local.options import add_cache
from etkit.local.progress import speak
from etkit.program import build_into

if TYPE_CHECKING:
    from etbuild.manifest.validate import Manifest
    from etbuild.plan.plan import Plan
    from etkit.running.benchmarking.runs import Timing
    from etkit.running.benchmarking.workloads import Workload
    from etplugins.runtime.program_files import ProgramFiles

    Loaded = tuple[Manifest, Plan]

_MANIFESTS = (".yaml", ".yml")
_RUNS, _RUNS_OF_TWO, _CALLS_OF_PHONE = 8, 12, 50


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "bench",
        "measure the speed and the memory of a program in ExecuTorch's runtime",
        "Each method runs in processes of its own. A decoder with a cache writes texts.",
    )
    add_path(parser, "PROGRAM", "a manifest, a .pte, an index, or a directory with an index")
    add_path(parser, "--against OTHER", "also measure this program, in turns, and say which one is faster")
    add_repeatable(parser, "--method NAME", "only this method")
    phone = parser.add_mutually_exclusive_group()
    add_path(phone, "--adb DIR", "measure nothing: write a script to DIR that measures the program on a phone")
    add_path(phone, "--from DIR", "measure nothing: read what that script has brought from the phone", dest="measured")
    _add_inputs(parser)
    _add_timing(parser)
    _add_results(parser)
    where = parser.add_argument_group("if PROGRAM or OTHER is a manifest")
    add_inputs(where)
    add_value(
        where,
        "--against-variant NAME",
        "take this variant of OTHER; without --against, OTHER is the manifest of PROGRAM",
    )
    add_cache(where)
    rule = add_rule_names(parser)
    add_path(rule, "--program FILE", "the .pte that was built from the manifest", dest="built")


def _add_inputs(parser: argparse.ArgumentParser) -> None:
    add_repeatable(
        parser,
        "--input NUMBER=VALUE",
        "an input of the method, counted from 0: JSON, FILE.npy, FILE.pt or FILE.safetensors:KEY",
    )
    add_repeatable(parser, "--dim NAME=SIZE", "the size of a dynamic dimension of the manifest; inputs are then random")
    add_value(parser, "--prompt-tokens N", "tokens of a decoder's prompt (default: 64)", type=count)
    add_value(parser, "--new-tokens N", "tokens after the prompt (default: 32)", type=count)


def _add_timing(parser: argparse.ArgumentParser) -> None:
    often = parser.add_mutually_exclusive_group()
    add_value(often, "--seconds S", "time for a method in all its runs (default: 2)", type=seconds, default=2.0)
    add_value(often, "--calls N", "calls of a method in each run, or texts of a decoder", type=count)
    add_value(parser, "--runs N", f"processes of a method (default: {_RUNS}, or {_RUNS_OF_TWO} of each)", type=count)
    add_value(parser, "--warm-up N", "calls in each run that do not count (default: 2)", type=whole(0), default=2)
    add_value(parser, "--threads N", "threads of the runtime (default: its own choice)", type=count)
    add_value(parser, "--seed N", "of the order of two programs (default: 0)", type=whole(0), default=0)
    add_value(parser, "--timeout SECONDS", "stop if all of it takes longer, and name what was running", type=seconds)


def _add_results(parser: argparse.ArgumentParser) -> None:
    add_value(parser, "--json FILE", "write the results as JSON; without FILE, print them", nargs="?", const="-")
    add_path(parser, "--svg FILE", "also draw how the times are distributed")
    add_value(
        parser,
        "--max-slowdown PERCENT",
        "with OTHER: fail if a method is slower than OTHER by more, with the whole 95 %% interval, such as 5%%",
        type=_percent,
    )


def _percent(text: str) -> float:
    try:
        value = float(text.removesuffix("%")) / 100
    except ValueError:
        value = -1
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a percentage such as 5%")
    return value


def run(options: argparse.Namespace) -> int:
    """Measures a program, or two of them, and prints the results."""
    from etkit.running.benchmarking import intervals

    two = options.against is not None or options.against_variant is not None
    runs = options.runs or (_RUNS_OF_TWO if two else _RUNS)
    if two and runs < intervals.FEWEST:
        raise InputError.of(f"--runs {runs}: a comparison needs at least {intervals.FEWEST} runs of each program")
    if runs > intervals.MOST:
        raise InputError.of(f"--runs {runs}: at most {intervals.MOST}", "`--seconds` makes each run longer")
    phone = options.adb is not None or options.measured is not None
    if phone and (two or options.json is not None or options.svg is not None or options.dim):
        raise InputError.of("--adb and --from measure one program in its largest sizes, and print text")
    if options.max_slowdown is not None and not two:
        raise InputError.of("--max-slowdown needs --against")
    sizes = _sizes(options.dim)
    first = _loaded(options, options.program, options.variant)
    other = _loaded(options, options.against or options.program, options.against_variant) if two else None
    for option, loaded in (("--variant", first), ("--against-variant", other)):
        if loaded is None and getattr(options, option[2:].replace("-", "_")) is not None:
            raise InputError.of(f"{option}: only a manifest has variants")
    if sizes and first is None:
        raise InputError.of("--dim: only a manifest names dimensions", "give the inputs with --input")
    speak()
    options.restart()  # then a crash of the runtime is reported as an error
    with ExitStack() as scratch:
        programs = [_program(options, options.built or options.program, first, scratch)]
        if phone:
            return _of_phone(options, programs[0])
        if two:
            programs.append(_program(options, options.against or options.program, other, scratch))
        return _measure(options, programs, first, sizes, runs)


def _sizes(texts: Sequence[str]) -> dict[str, int]:
    found = {}
    for text in texts:
        name, size = named_value("--dim", text, "NAME=SIZE")
        if not size.isdecimal():
            raise InputError.of(f"--dim {text}: expected NAME=SIZE")
        found[name] = int(size)
    return found


# The programs


def _loaded(options: argparse.Namespace, path: Path, variant: str | None) -> Loaded | None:
    """The manifest at a path with its plan; None if the path is not that of a manifest."""
    from etbuild.manifest import validate
    from etbuild.plan.plan import from_manifest

    if path.suffix not in _MANIFESTS:
        return None
    own = path == options.program
    loaded = validate.load(path, options.manifest_name if own else None, variant, settings(options))
    plan = from_manifest(loaded.data)
    if own and options.program_name is not None and variant == options.variant:
        plan = plan.replace(name=options.program_name)
    return loaded, plan


def _program(options: argparse.Namespace, path: Path, loaded: Loaded | None, scratch: ExitStack) -> ProgramFiles:
    """Finds a program. Builds it if the path is that of a manifest."""
    from etbuild.manifest.positions import locating
    from etkit.find_index import read_index
    from etplugins.runtime import program_files

    if path.suffix == ".pte" or path == options.built:
        return program_files.read(path)
    if loaded is None:
        index, content = read_index(path)
        name = next(each["file"] for each in content["artifacts"] if each["kind"] == "program")
        return program_files.read(index.parent / name)
    manifest, plan = loaded
    directory = Path(scratch.enter_context(tempfile.TemporaryDirectory()))
    with locating(manifest.positions):
        return program_files.read(build_into(options, path, plan, directory))


# The measurement


def _measure(
    options: argparse.Namespace,
    programs: list[ProgramFiles],
    first: Loaded | None,
    sizes: dict[str, int],
    runs: int,
) -> int:
    from etbuild.publishing import artifacts
    from etkit.local.progress import Steps
    from etkit.running.benchmarking import plot, results
    from etkit.running.benchmarking import runs as measuring
    from etkit.running.benchmarking.runs import Timing

    timing = Timing(runs, options.seconds, options.calls, options.warm_up, options.threads, options.seed, Steps().stage)
    names = _methods(options, programs)
    measuring.check_backends(programs)
    found = []
    for workload in _workloads(options, programs[0], names, first, sizes, timing):
        found += results.phases(workload, measuring.measure(programs, workload, timing))
    found = [phase for phase in found if phase.method in names]
    facts = results.as_json(programs, found, timing, measuring.machine())
    if options.svg is not None:
        artifacts.replace(options.svg, plot.draw([files.program.name for files in programs], found).encode())
    if options.json not in (None, "-"):
        artifacts.replace(Path(options.json), f"{json.dumps(facts, indent=2)}\n".encode())
    print(json.dumps(facts, indent=2)) if options.json == "-" else print(results.text(facts))
    return _judge(facts, options.max_slowdown)


def _of_phone(options: argparse.Namespace, files: ProgramFiles) -> int:
    """Writes what measures a program on a phone, or prints what the phone has measured."""
    from etkit.running.benchmarking import inputs as benchmarked
    from etkit.running.benchmarking import phone

    names = _methods(options, [files])
    if options.measured is not None:
        print(phone.text(options.measured, files, names, options.warm_up))
        return 0
    if options.input and len(names) > 1:
        raise InputError.of("--input: the program has several methods", f"add `--method`: {', '.join(names)}")
    facts = {name: files.method(name) for name in names}
    given = {
        name: benchmarked.given(name, each, options.input, benchmarked.at_random(each)) for name, each in facts.items()
    }
    calls = options.warm_up + (options.calls or _CALLS_OF_PHONE)
    script = phone.write(options.adb, files, given, calls, options.threads)
    print(f"run `sh {script} RUNNER` with ExecuTorch's executor_runner for the phone,")
    print(f"then `etbuild bench {options.program} --from {options.adb}`")
    return 0


def _methods(options: argparse.Namespace, programs: list[ProgramFiles]) -> list[str]:
    """The names of the measured methods. Two programs are measured with the methods that both have."""
    from etkit.running.benchmarking.workloads import is_constant

    for files in programs:
        for name in options.method:
            if is_constant(files.method(name)):
                raise InputError.of(f"`{name}` only returns constants: there is nothing to measure")
    of_each = [{name for name, each in files.facts["methods"].items() if not is_constant(each)} for files in programs]
    shared = set.intersection(*of_each)
    names = [*dict.fromkeys(options.method)] or sorted(shared)
    if not names:
        whose = (
            "the programs have no method in common" if len(programs) > 1 else "the program has only constant methods"
        )
        raise InputError.of(f"nothing to measure: {whose}")
    for name in sorted(set.union(*of_each) - shared) if not options.method else ():
        print(f"note: only one of the programs has the method `{name}`: it is not measured", file=sys.stderr)
    return names


def _workloads(
    options: argparse.Namespace,
    files: ProgramFiles,
    names: list[str],
    first: Loaded | None,
    sizes: dict[str, int],
    timing: Timing,
) -> list[Workload]:
    from etkit.running.benchmarking import inputs as benchmarked
    from etkit.running.benchmarking.workloads import Workload, find_decoder

    if options.input and len(names) > 1:
        raise InputError.of("--input: the program has several methods", f"add `--method`: {', '.join(names)}")
    decoder = None if options.input or sizes else find_decoder(files, options.prompt_tokens, options.new_tokens)
    if decoder is not None and not {*names} & {*decoder.methods}:
        decoder = None
    if decoder is None and (options.prompt_tokens or options.new_tokens):
        message = "--prompt-tokens and --new-tokens: these are not the texts of a decoder with a cache"
        hint = "the constant methods `use_kv_cache` and `get_max_seq_len` say so; leave out --input and --dim"
        raise InputError.of(message, hint)
    plain = [name for name in names if decoder is None or name not in decoder.methods]
    known = _of_manifest(options, first, sizes, timing) if first is not None and plain else {}

    def of(method: str) -> list[Any]:
        facts = files.method(method)
        others = known[method] if method in plain and method in known else benchmarked.at_random(facts)
        return benchmarked.given(method, facts, options.input, others)

    source = "options" if options.input else "random" if first is None else "sizes" if sizes else "manifest"
    found = [Workload({name: of(name)}, source) for name in plain]
    if decoder is not None:
        found.append(Workload({name: of(name) for name in decoder.methods}, "random", decoder))
    return found


def _of_manifest(
    options: argparse.Namespace, first: Loaded, sizes: dict[str, int], timing: Timing
) -> dict[str, list[Any]]:
    from etbuild.manifest.positions import locating
    from etkit.running.benchmarking.inputs import of_manifest
    from etplugins.model_tests.parts import tests_of

    manifest, plan = first
    declared = inputs(options, [options.program.parent, *options.root])
    with locating(manifest.positions):
        return of_manifest(plan, tests_of(manifest.data, plan.methods), declared, sizes, timing.stage)


# The results


def _judge(facts: dict[str, Any], limit: float | None) -> int:
    """The exit code. Prints which phases are slower than the limit allows."""
    slow = [each["phase"] for each in facts["phases"] if limit is not None and each["verdict"]["low"] > limit]
    for phase in slow:
        print(f"{phase}: slower than --max-slowdown {limit:.1%} allows", file=sys.stderr)
    return CheckError.exit_code if slow else 0
