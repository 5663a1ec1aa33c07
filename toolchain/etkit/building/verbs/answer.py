"""`etbuild answer`: builds what `Model.build` of the Python interface asks for. Nothing else calls it."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = verbs.add_parser("answer", allow_abbrev=False)
    parser.add_argument("directory", type=Path)


def run(options: argparse.Namespace) -> int:
    """Builds one program. Writes the result, or an error, into the answer, and prints nothing."""
    from etbuild.manifest import validate
    from etkit.building.programs import build_each, programs_of
    from etkit.local import request
    from etkit.local.build import BuildOptions
    from etkit.local.interface import BuildRequest, Built
    from etkit.local.options import cache
    from etkit.local.progress import Steps

    options.tell = partial(request.answer, options.directory)
    asked: BuildRequest = request.read(options.directory)
    loaded = validate.load_each(asked.manifest, None, [asked.variant], asked.parameters)
    programs = programs_of(loaded, (asked.manifest, None), [asked.variant], asked.parameters, asked.inputs())
    how = BuildOptions(Steps().stage, cache(asked.cache_directory) if asked.cache else None, options.restart)
    [(_, built)] = build_each(programs, asked.directory, how, go_on=False).built
    request.answer(options.directory, Built(asked.directory, built.key, [each.path for each in built.artifacts]))
    return 0
