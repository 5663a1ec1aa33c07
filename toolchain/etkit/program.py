"""Builds the program that a verb runs or measures, and adds the options for a program that is built already."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from etbuild.cli.options import add_path, inputs, settings
from etbuild.errors import InputError
from etkit.local.options import kept_cache

if TYPE_CHECKING:
    from etbuild.manifest.validate import Manifest
    from etbuild.plan.plan import Plan


def add_program(parser: argparse.ArgumentParser, verb: str) -> None:
    """Adds the options for a program that is built already. `verb` is what the command does with it, such as `test`."""
    add_path(parser, "--program FILE", f"{verb} this .pte instead of building one; its index is in the same directory")
    add_named_data(parser, "`--program`")


def add_named_data(parser: argparse.ArgumentParser, program: str) -> None:
    """Adds the option for the named data of a program."""
    parser.add_argument(
        "--named-data",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help=f"a .ptd file of {program}, or a directory of them (repeatable; default: those of its index)",
    )


def load(options: argparse.Namespace) -> tuple[Manifest, Plan]:
    """Reads the manifest. Returns it and its plan, with the names of `add_rule_names`.

    Raises:
        InputError: The manifest has problems, or no such variant.
    """
    from etbuild.manifest import validate
    from etbuild.plan.plan import from_manifest

    loaded = validate.load(options.manifest, options.manifest_name, options.variant, settings(options))
    plan = from_manifest(loaded.data)
    return loaded, plan if options.program_name is None else plan.replace(name=options.program_name)


def check_program(options: argparse.Namespace) -> None:
    """Checks the options of `add_program`.

    Raises:
        InputError: There is named data of no program.
    """
    if options.named_data and options.program is None:
        raise InputError.of("--named-data goes with --program")


def build_into(
    options: argparse.Namespace, manifest: Path, plan: Plan, directory: Path, origins: Path | None = None
) -> Path:
    """Builds a program, or takes it from the cache. Returns the path of the `.pte`.

    Args:
        options: The options of `add_roots`, `add_declared` and `add_cache`.
        manifest: The manifest.
        plan: Its plan.
        directory: Where to write the program.
        origins: Where to write the files that say where its instructions come from; None: nowhere.
    """
    from etkit.local.build import BuildOptions, build
    from etkit.local.progress import Steps

    declared = inputs(options, [manifest.parent, *options.root])
    shown = Steps()
    how = BuildOptions(shown.stage, kept_cache(options), origins=origins, step=shown.step)
    build(plan, declared, directory, how)
    return directory / f"{plan.name}.pte"
