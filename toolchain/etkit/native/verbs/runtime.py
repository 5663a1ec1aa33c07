"""`etbuild runtime`: copies ExecuTorch's C++ runtime out of its wheel, for build rules."""

from __future__ import annotations

import argparse
import shutil
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from etbuild.cli.options import add_path, add_repeatable, add_step_parser
from etbuild.errors import InputError


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_step_parser(verbs, "runtime", "copies ExecuTorch's C++ runtime out of its wheel")
    add_path(parser, "--include DIR", "directory for the headers", required=True)
    add_repeatable(parser, "--library FILE", "a library; its name is that in the wheel", type=Path)


def run(options: argparse.Namespace) -> int:
    """Copies the files."""
    spec = PathFinder.find_spec("executorch")
    places = [Path(place) for place in (spec and spec.submodule_search_locations) or ()]
    root = next((place for place in places if (place / "include").is_dir()), None)
    if root is None:
        raise InputError.of("the installed executorch has no C++ runtime: it is in the wheels for Linux and macOS")
    shutil.copytree(root / "include", options.include, dirs_exist_ok=True)
    for library in options.library:
        source = root / "lib" / library.name
        if not source.is_file():
            raise InputError.of(f"the installed executorch has no {library.name}")
        shutil.copyfile(source, library)
    return 0
