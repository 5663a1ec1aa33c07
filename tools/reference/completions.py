"""Makes the code that completes `etbuild` in shells, from the parsers of the driver."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import shtab

from etbuild.cli import main
from etkit.cli.completion import SHELLS


def files() -> dict[str, str]:
    """Returns the code for each shell by the name of its file."""
    parser = main.command_parser()
    for one in _with_verbs(parser):
        for action in one._actions:
            _complete_paths(action)
    return {f"etbuild.{shell}": _without_trailing_spaces(shtab.complete(parser, shell)) for shell in SHELLS}


def _with_verbs(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _with_verbs(below)


def _complete_paths(action: Any) -> None:
    """An argument without an option may name a file, and so may an option whose type is a path."""
    if action.choices is None and (action.type is Path or not action.option_strings):
        action.complete = shtab.DIRECTORY if action.metavar == "DIR" else shtab.FILE


def _without_trailing_spaces(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
