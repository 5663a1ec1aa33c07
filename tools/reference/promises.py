"""Lists the names that a release promises to keep: what manifests, build files, scripts and programs contain."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from etbuild.cli import main
from tools.reference.python_names import PUBLIC
from tools.reference.rules import TOPICS, attributes
from tools.reference.starlark import Loader

_FORMATS = ("model", "index", "report", "lock", "package", "policy", "delta")
"""The schemas of files that users write, or that later releases read."""


def names(root: Path) -> list[str]:
    """Returns the names, sorted, each with its kind."""
    return sorted({*_schemas(root), *_rules(root), *_python(), *_command_line()})


def _schemas(root: Path) -> Iterator[str]:
    for name in _FORMATS:
        schema = json.loads((root / "schemas" / f"{name}.schema.json").read_text("utf-8"))
        yield from (f"{name} {key}" for key in _keys(schema, ""))


def _keys(schema: Any, path: str) -> Iterator[str]:
    """The keys of objects in a schema, each after the names of the definitions and keys around it."""
    if isinstance(schema, list):
        for each in schema:
            yield from _keys(each, path)
    if not isinstance(schema, dict):
        return
    for name, below in schema.items():
        if name in ("properties", "$defs"):
            for key, value in below.items():
                yield from [f"{path}{key}"] if name == "properties" else []
                yield from _keys(value, f"{path}{key}.")
        else:
            yield from _keys(below, path)


def _rules(root: Path) -> Iterator[str]:
    loader = Loader(root)
    for path in sorted((root / "rules").glob("*.bzl")):
        for name, value in loader.load(path).names.items():
            if not name.startswith("_"):
                yield f"{path.name} {name}"
                if path.name not in TOPICS:  # `defs.bzl` has them
                    yield from (f"{path.name} {name}.{attribute}" for attribute in attributes(name, value))


def _python() -> Iterator[str]:
    yield from (f"python {module}.{name}" for module, several in PUBLIC.items() for name in several)


def _command_line() -> Iterator[str]:
    for code, meaning in main.EXIT_CODES.items():
        yield f"exit code {code}: {meaning}"
    for verb, parser in _verbs(main.command_parser([verb for listed in main.sections().values() for verb in listed])):
        yield f"command {verb}"
        for action in parser._actions:
            yield from (f"command {verb} {option}" for option in action.option_strings)


def _verbs(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield below.prog, below
                yield from _verbs(below)
