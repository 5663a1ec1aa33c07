"""`etbuild kernels`: writes C++ that registers just the kernels that programs need."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from etbuild.cli.options import add_parser, add_path, add_repeatable
from etbuild.errors import InputError, printable


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "kernels",
        "write C++ that registers just the kernels that programs need",
        "ExecuTorch's code generator makes it. Compile it for the device and link it with the kernels.",
    )
    parser.add_argument(
        "selection", type=Path, metavar="FILE", help="a selected_operators.yaml, as `etbuild selected-ops` writes it"
    )
    add_path(parser, "-o, --out DIR", "directory for the files", dest="directory", default=Path())
    add_repeatable(
        parser,
        "--functions FILE",
        "the kernels that there are, in the form of ExecuTorch's functions.yaml; of several kernels for one operator, "
        "the one in the first file is taken (default: ExecuTorch's portable and quantized kernels)",
        type=Path,
    )


def run(options: argparse.Namespace) -> int:
    """Writes the files and prints their paths."""
    from etbuild.publishing import artifacts
    from etkit.native.kernels import registration

    made = registration.make(options.selection, options.functions)
    try:
        options.directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError.of(f"{options.directory}: cannot make the directory: {error.strerror}") from None
    for file, text in made.items():
        artifacts.replace(options.directory / file, text)
        print(printable(str(options.directory / file)))
    return 0
