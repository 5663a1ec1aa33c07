"""`etbuild runtime`: copies ExecuTorch's C++ runtime out of its wheel, for build rules."""

from __future__ import annotations

import argparse
import shutil
import zipfile
import zlib
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from etbuild.cli.options import add_path, add_repeatable, add_step_parser
from etbuild.errors import InputError, printable


def add(verbs: Any) -> None:
    """Registers the verb."""
    summary = "copies ExecuTorch's C++ runtime out of its wheel, or prints the directory of the installed one"
    parser = add_step_parser(verbs, "runtime", summary)
    add_path(parser, "--wheel FILE", "a wheel of ExecuTorch, which may be for another machine")
    add_path(parser, "--include DIR", "directory for the headers; without it, the verb prints a directory")
    add_repeatable(parser, "--library FILE", "a library; its name is that in the wheel", type=Path)


def run(options: argparse.Namespace) -> int:
    """Copies the files."""
    if options.wheel:
        if not options.include:
            raise InputError.of("--wheel goes with --include")
        _unpack(options.wheel, options.include, options.library)
        return 0
    root = _installed()
    if not options.include:
        print(printable(str(root)))
        return 0
    shutil.copytree(root / "include", options.include, dirs_exist_ok=True)
    for library in options.library:
        source = root / "lib" / library.name
        if not source.is_file():
            raise InputError.of(f"the installed executorch has no {library.name}")
        shutil.copyfile(source, library)
    return 0


def _installed() -> Path:
    """Returns the directory of the installed ExecuTorch, without importing it."""
    spec = PathFinder.find_spec("executorch")
    places = [Path(place) for place in (spec and spec.submodule_search_locations) or ()]
    root = next((place for place in places if (place / "include").is_dir()), None)
    if root is None:
        raise InputError.of("the installed executorch has no C++ runtime: it is in the wheels for Linux and macOS")
    return root


def _unpack(wheel: Path, include: Path, libraries: Sequence[Path]) -> None:
    """Writes the headers and the libraries of a wheel."""
    headers, wanted = "executorch/include/", {f"executorch/lib/{library.name}": library for library in libraries}
    try:
        with zipfile.ZipFile(wheel) as file:
            made = {include / name.removeprefix(headers): name for name in file.namelist() if name.startswith(headers)}
            made = {place: name for place, name in made.items() if not name.endswith("/")}
            missing = sorted(wanted.keys() - set(file.namelist())) + ([] if made else [headers.rstrip("/")])
            if missing:
                raise InputError.of(f"{wheel}: no wheel of ExecuTorch with a C++ runtime: it has no {missing[0]}")
            for place, name in {**made, **{place: name for name, place in wanted.items()}}.items():
                if ".." in name.split("/") or name.startswith(f"{headers}/"):
                    raise InputError.of(f"{wheel}: {printable(name)} is not below {headers.rstrip('/')}")
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(file.read(name))
    except (OSError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError.of(f"{wheel}: cannot read the wheel: {error}") from None
