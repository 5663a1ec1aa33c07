"""`etbuild completion`: prints the code that completes `etbuild` in a shell."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from etbuild.cli.options import add_parser

SHELLS = ("bash", "zsh", "fish")
FILES = Path(__file__).parents[1] / "completions"
"""The code for each shell. `make reference` writes it."""


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "completion",
        "print the code that completes verbs, options and files in a shell",
        "Write the example into the file that the shell reads when it starts.",
    )
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=f"the shell: {', '.join(SHELLS)}")


def run(options: argparse.Namespace) -> int:
    """Prints the code."""
    print((FILES / f"etbuild.{options.shell}").read_text("utf-8"), end="")
    return 0
