"""`etbuild tune`: tries schemes of quantization, and says which are worth it."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from etbuild.cli.options import (
    add_declared,
    add_flag,
    add_lowering_options,
    add_manifest,
    add_parser,
    add_path,
    add_repeatable,
    add_roots,
    add_settings,
    add_value,
    inputs,
    lowering_options,
    settings,
)
from etbuild.errors import InputError, did_you_mean, printable
from etkit.building.verbs.build import seconds
from etkit.local.options import add_cache, kept_cache


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "tune",
        "try float16 and quantizations, and say which are worth it",
        "Builds the program with each scheme that fits its backends. Shows size, agreement with the model in float32, "
        "latency and memory.",
    )
    add_manifest(parser)
    add_repeatable(parser, "--only SCHEME", "try only this scheme, and float32")
    often = parser.add_mutually_exclusive_group()
    add_value(often, "--seconds S", "time for the calls of a method (default: 1)", type=seconds, default=1.0)
    add_flag(often, "--no-latency", "measure no times: then the result is the same each time")
    add_flag(parser, "--write", "add the best schemes to the manifest, as variants; its comments stay")
    add_path(parser, "--svg FILE", "also draw agreement over size")
    add_path(parser, "--html FILE", "also write a page with the table, the plot and the variants")
    add_flag(parser, "--json", "print the results as JSON")
    add_settings(parser)
    add_roots(parser)
    add_declared(parser)
    add_cache(parser)
    add_lowering_options(parser)


def run(options: argparse.Namespace) -> int:
    """Tries the schemes, and prints what they cost."""
    from etbuild.manifest import validate
    from etbuild.manifest.positions import locating
    from etbuild.publishing import artifacts
    from etkit.choosing import shown
    from etkit.choosing.trials import Tuning, tried
    from etkit.local.build import BuildOptions
    from etkit.local.progress import Steps, speak

    if options.write and options.settings:
        raise InputError.of("--write does not go with --set: variants of other values would be written")
    loaded = validate.load(options.manifest, None, None, settings(options))
    with locating(loaded.positions):
        _check_names(options.only, loaded.data)
        speak()
        options.restart()
        steps = Steps()
        how = BuildOptions(
            steps.stage, kept_cache(options), options.restart, lowering_options(options), step=steps.step
        )
        declared = inputs(options, [options.manifest.parent, *options.root])
        times = None if options.no_latency else options.seconds
        trials = tried(Tuning(loaded, declared, how, times, options.only))
    name = loaded.data["name"]
    for path, draw in ((options.svg, shown.plot), (options.html, shown.page)):
        if path is not None:
            artifacts.replace(path, draw(name, trials).encode())
    print(_json(shown.as_json(name, trials)) if options.json else shown.as_text(trials))
    if options.write:
        _write(options.manifest, trials)
    return 0


def _check_names(only: list[str], data: Any) -> None:
    from etkit.choosing.schemes import schemes

    known = [each.name for each in schemes(data)]
    for name in only:
        if name not in known:
            raise InputError.of(f"--only {name}: no such scheme fits this manifest", did_you_mean(name, known))


def _json(content: Any) -> str:
    """JSON in which a number that is not finite is null."""

    def finite(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: finite(each) for key, each in value.items()}
        if isinstance(value, list):
            return [finite(each) for each in value]
        return value if not isinstance(value, float) or abs(value) < float("inf") else None

    return json.dumps(finite(content), indent=2)


def _write(manifest: Path, trials: Any) -> None:
    from etkit.choosing import added

    names = added.add(manifest, trials)
    shown = printable(str(manifest))
    said = f"{shown} has new variants: {', '.join(names)}" if names else f"{shown} has these variants already"
    print(said, file=sys.stderr)
