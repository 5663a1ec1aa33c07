"""`etbuild selected-ops`: lists the kernels that programs need, for applications that link only these."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild.cli.options import add_flag, add_parser, add_path, add_repeatable
from etbuild.errors import InputError, counted, printable

if TYPE_CHECKING:
    from etkit.native.kernels.kernel_sets import Needed


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "selected-ops",
        "list the kernels that programs need",
        "ExecuTorch's selective build reads the file that `--out` names. What a delegate computes needs no kernel.",
    )
    parser.add_argument("programs", nargs="+", type=Path, metavar="PTE", help="a program of any ExecuTorch build")
    add_path(parser, "-o, --out FILE", "write a selected_operators.yaml")
    add_repeatable(
        parser,
        "--kernels FILE",
        "fail if a program needs a kernel that is not in this selected_operators.yaml or functions.yaml; of "
        "several files, one must have it",
        type=Path,
    )
    add_flag(parser, "--runtime", "the same for the runtime of the installed executorch; adds to --kernels")
    parser.add_argument(
        "--lines",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="the lines of the sources of a program, for messages: NAME.export.lines.json of its build. If given, it "
        "is given once for each PTE, in the same order",
    )
    add_flag(parser, "--json", "print JSON")


def run(options: argparse.Namespace) -> int:
    """Prints or writes the kernels, and checks that they are there."""
    from etkit.native.kernels import kernel_sets

    needed = _needed(options)
    available = [kernel_sets.read(path) for path in options.kernels]
    if options.runtime:
        available.append(kernel_sets.of_runtime())
    if available:
        kernel_sets.check(needed, available)
    if options.out is not None:
        from etbuild.publishing.artifacts import replace
        from etkit.native.kernels import selected_operators

        replace(options.out, selected_operators.make(options.programs))
    _print(needed, options)
    return 0


def _needed(options: argparse.Namespace) -> list[Needed]:
    from etbuild.inputs.source_lines import NO_LINES, SourceLines
    from etkit.native.kernels import program_kernels
    from etkit.native.kernels.kernel_sets import Needed

    if options.lines and len(options.lines) != len(options.programs):
        times, programs = counted(len(options.lines), "time"), counted(len(options.programs), "program")
        message = f"--lines is given {times} for {programs}"
        raise InputError.of(message, "give it once for each program")
    lines = [SourceLines.read(path) for path in options.lines] or [NO_LINES] * len(options.programs)
    return [
        Needed(path.name, program_kernels.read(path), each) for path, each in zip(options.programs, lines, strict=True)
    ]


def _print(needed: list[Needed], options: argparse.Namespace) -> None:
    if options.json:
        facts = {
            str(path): {
                method: {operator: sorted(dtypes) for operator, dtypes in kernels.items()}
                for method, kernels in sorted(each.methods.items())
            }
            for path, each in zip(options.programs, needed, strict=True)
        }
        print(json.dumps(facts, indent=2))
    elif options.out is None:
        from etkit.tables import table

        operators: dict[str, set[str]] = {}
        for each in needed:
            for kernels in each.methods.values():
                for operator, dtypes in kernels.items():
                    operators.setdefault(operator, set()).update(dtypes)
        rows = [(printable(operator), ", ".join(sorted(dtypes))) for operator, dtypes in sorted(operators.items())]
        print(table([("operator", "dtypes"), *rows]) if rows else "the programs call no kernels: delegates compute all")
