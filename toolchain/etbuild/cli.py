"""The command line. Results go to standard output, diagnostics to standard error.

Exit codes: 0 done; 1 the build failed; 2 bad input or usage.
"""

from __future__ import annotations

import argparse
import errno
import io
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from etbuild import __version__
from etbuild.errors import EtbuildError, InputError, Positions, Problem


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code. Only errors of ours leave it as exceptions."""
    _mend_streams()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _interrupt)
    try:
        options = _parser().parse_args(_expand(list(sys.argv[1:] if arguments is None else arguments)))
        code = int(options.run(options))
        sys.stdout.flush()
        return code
    except EtbuildError as error:
        _complain(error)
        return error.exit_code
    except KeyboardInterrupt:
        print("etbuild: interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC, errno.EIO) or error.filename is not None:
            raise
        if error.errno != errno.EPIPE:  # a reader that has gone wants to hear nothing
            print(f"etbuild: cannot write to standard output: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _mend_streams() -> None:
    """Closed streams take what is written and lose it; characters that a stream's encoding lacks are escaped."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
            setattr(sys, name, os.fdopen(descriptor, "w"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _interrupt(number: int, frame: object) -> None:
    """Ends the command as Ctrl-C does, so that nothing half-made stays behind."""
    raise KeyboardInterrupt


def _complain(error: EtbuildError) -> None:
    from etbuild.progress import BOLD, RED, paint

    for problem in error.problems:
        head, _, hint = str(problem).partition("\n")
        mark = paint("error:", RED + BOLD, sys.stderr)
        print(f"{mark} {head}" + (f"\n{hint}" if hint else ""), file=sys.stderr)
    count = len(error.problems)
    if count > 1:
        print(f"{count} errors", file=sys.stderr)


def _expand(arguments: list[str]) -> list[str]:
    """Replaces an only argument `@FILE` after the verb by the file's lines: so build systems pass many."""
    if len(arguments) != 2 or not arguments[1].startswith("@"):
        return arguments
    path = Path(arguments[-1][1:])
    try:
        return [*arguments[:-1], *path.read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError([Problem(f"{path}: cannot read the file of arguments: {error}")]) from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="etbuild",
        description="Turns a manifest and a PyTorch model into an ExecuTorch program.",
        epilog="exit codes: 0 done; 1 the build failed; 2 bad input or usage",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"etbuild {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    validate = verbs.add_parser("validate", help="check manifests", allow_abbrev=False)
    validate.add_argument("manifests", nargs="+", type=Path, metavar="MANIFEST")
    validate.add_argument("--json", action="store_true", help="problems as JSON, on standard output")
    validate.set_defaults(run=_validate)

    plan = verbs.add_parser("plan", help="print what would be built, and its key", allow_abbrev=False)
    _add_inputs(plan)
    rule = plan.add_argument_group("for build rules")
    rule.add_argument("--manifest-name", metavar="NAME", help="how errors call the manifest")
    for attribute in ("name", "methods", "backends", "named-data"):
        rule.add_argument(f"--expect-{attribute}", metavar="A,B", help="fail if the manifest says otherwise")
    rule.add_argument("--plan", type=Path, metavar="FILE", help="write the plan here and print nothing")
    rule.add_argument("--positions", type=Path, metavar="FILE", help="write the manifest's line numbers here")
    plan.set_defaults(run=_plan)

    build = verbs.add_parser("build", help="build a program on this machine", allow_abbrev=False)
    _add_inputs(build)
    build.add_argument(
        "-o",
        dest="directory",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="where the artifacts go (default: the current directory)",
    )
    build.add_argument("--json", action="store_true", help="the artifacts as JSON instead of a table")
    build.set_defaults(run=_build)

    lower = verbs.add_parser("lower", help="build a plan's program, for build rules", allow_abbrev=False)
    lower.add_argument("plan", type=Path, metavar="PLAN")
    _add_declared(lower)
    lower.add_argument("-o", dest="directory", type=Path, required=True, metavar="DIR")
    lower.set_defaults(run=_lower)

    inspect = verbs.add_parser("inspect", help="show what is in a .pte or .ptd", allow_abbrev=False)
    inspect.add_argument("file", type=Path, metavar="FILE")
    inspect.add_argument("--json", action="store_true", help="as JSON")
    inspect.set_defaults(run=_inspect)
    return parser


def _add_inputs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("manifest", type=Path, metavar="MANIFEST")
    parser.add_argument(
        "--root",
        action="append",
        default=[],
        type=Path,
        metavar="DIR",
        help="search sources and data here too, after the manifest's directory (may be repeated)",
    )
    _add_declared(parser)


def _add_declared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--source",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="declare a source by import path, such as models/net.py=FILE (may be repeated)",
    )
    parser.add_argument(
        "--data",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="declare a data file by the name that the manifest uses (may be repeated)",
    )


def _declared(option: str, values: list[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for value in values:
        name, separator, path = value.partition("=")
        if not separator or not name or not path:
            raise InputError([Problem(f"{option} {value}: expected NAME=FILE")])
        if name in found and found[name] != Path(path):
            raise InputError([Problem(f"{option}: the name `{name}` stands for {found[name]} and for {path}")])
        found[name] = Path(path)
    return found


def _inputs(options: argparse.Namespace, roots: list[Path]) -> Any:
    from etbuild.inputs import Inputs

    for root in roots:
        if not root.is_dir():
            raise InputError([Problem(f"--root {root}: not a directory")])
    return Inputs(_declared("--source", options.source), _declared("--data", options.data), roots)


def _validate(options: argparse.Namespace) -> int:
    from etbuild import manifest, plan

    problems = []
    for path in options.manifests:
        try:
            loaded = manifest.load(path)
            plan.reduce(loaded.data)
        except InputError as error:
            problems += error.problems
    if options.json:
        print(json.dumps([_problem_json(problem) for problem in problems], indent=2))
    elif problems:
        _complain(InputError(problems))
    else:
        print(f"{len(options.manifests)} manifest{'s' if len(options.manifests) > 1 else ''} checked: no errors")
    return InputError.exit_code if problems else 0


def _problem_json(problem: Problem) -> dict[str, Any]:
    position = problem.position
    return {
        "file": position.file if position else None,
        "line": position.line if position else None,
        "column": position.column if position else None,
        "path": list(problem.path or ()),
        "message": problem.message,
        "hint": problem.hint,
    }


def _plan(options: argparse.Namespace) -> int:
    from etbuild import inputs, manifest
    from etbuild import plan as plans

    loaded = manifest.load(options.manifest, options.manifest_name)
    try:
        plan = plans.reduce(loaded.data)
        _check_expectations(plan, options)
        if options.plan is not None:
            return _write_plan(plan, loaded, options)
        declared = _inputs(options, [options.manifest.parent, *options.root])
        described = inputs.describe(declared, plan, inputs.used_sources(declared, plan))
    except EtbuildError as error:
        raise error.located(loaded.positions) from None
    print(json.dumps({"key": plans.digest(described), "inputs": described, "plan": plan}, indent=2, sort_keys=True))
    return 0


def _check_expectations(plan: Any, options: argparse.Namespace) -> None:
    from etbuild.plan import check_expectations

    expected: dict[str, list[str] | None] = {}
    for attribute in ("name", "methods", "backends", "named_data"):
        text = getattr(options, f"expect_{attribute}")
        expected[attribute] = None if text is None else [value for value in text.split(",") if value]
    check_expectations(plan, expected)


def _write_plan(plan: Any, loaded: Any, options: argparse.Namespace) -> int:
    from etbuild import files
    from etbuild.plan import canonical_json, positions_to_json

    outputs = [(options.plan, plan)]
    if options.positions is not None:
        outputs.append((options.positions, positions_to_json(loaded.positions)))
    for path, content in outputs:
        files.replace(path, canonical_json(content))
    return 0


def _build(options: argparse.Namespace) -> int:
    from etbuild import manifest
    from etbuild import plan as plans
    from etbuild.build import build
    from etbuild.progress import Progress

    loaded = manifest.load(options.manifest)
    plan = plans.reduce(loaded.data)
    try:
        inputs = _inputs(options, [options.manifest.parent, *options.root])
        artifacts = build(plan, inputs, options.directory, Progress().stage)
    except EtbuildError as error:
        raise error.located(loaded.positions) from error
    if options.json:
        print(json.dumps([{**artifact.facts(), "path": str(artifact.path)} for artifact in artifacts], indent=2))
    else:
        print(_artifact_table(artifacts))
    return 0


def _artifact_table(artifacts: list[Any]) -> str:
    from etbuild.progress import size, table

    rows = [("artifact", "size", "sha256")]
    rows += [(str(artifact.path), size(artifact.size), artifact.sha256[:16]) for artifact in artifacts]
    return table(rows)


def _lower(options: argparse.Namespace) -> int:
    from etbuild.build import build
    from etbuild.progress import Progress

    try:
        plan = json.loads(options.plan.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError([Problem(f"{options.plan}: not a plan: {error}")]) from None
    try:
        build(plan, _inputs(options, []), options.directory, Progress().stage)
    except EtbuildError as error:
        raise error.located(_positions_beside(options.plan)) from error
    return 0


def _positions_beside(plan: Path) -> Positions:
    """Line numbers of the manifest, from the file that `plan --positions` wrote beside the real plan, if it is there.

    It is no input of the lowering, so that a comment in a manifest changes no key: it is read to word an error, never
    for an output.
    """
    from etbuild.plan import positions_from_json

    real = plan.resolve()
    try:
        return positions_from_json(
            json.loads(real.with_name(real.name.replace(".plan.json", ".positions.json")).read_bytes())
        )
    except (OSError, ValueError, TypeError):
        return {}


def _inspect(options: argparse.Namespace) -> int:
    from etbuild.quiet import library_messages_off

    with library_messages_off():
        from etbuild import inspection, program_file

        facts = program_file.describe(options.file)
    print(json.dumps(facts, indent=2, sort_keys=True) if options.json else inspection.text(facts))
    return 0
