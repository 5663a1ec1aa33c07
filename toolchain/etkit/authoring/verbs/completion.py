"""`etbuild completion`: prints the code that completes `etbuild` in a shell."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from etbuild.cli.options import add_parser
from etbuild.errors import InputError

_SHELLS = ("bash", "zsh", "fish")


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "completion",
        "print the code that completes verbs, options and files in a shell",
        "Write the example into the file that the shell reads when it starts. The package `shtab` makes the code.",
    )
    parser.add_argument("shell", choices=_SHELLS, metavar="SHELL", help=f"the shell: {', '.join(_SHELLS)}")


def run(options: argparse.Namespace) -> int:
    """Prints the code, which is made from the parsers of all verbs."""
    try:
        import shtab
    except ImportError:
        raise InputError.of("`etbuild completion` needs the package `shtab`", "pip install shtab") from None
    from etbuild.cli.main import command_parser

    parser = command_parser()
    for action in _actions(parser):
        if action.choices is None and (action.type is Path or not action.option_strings):
            action.complete = shtab.DIRECTORY if action.metavar == "DIR" else shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, options.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The arguments of a parser, and those of its verbs."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _actions(below)
