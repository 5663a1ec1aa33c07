"""Adds options that several verbs share, and interprets their values."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild.errors import EtbuildError, InputError, Positions

if TYPE_CHECKING:
    from etbuild.export.layout import ExportFiles
    from etbuild.inputs.step_context import Watch
    from etbuild.key.declared import Inputs
    from etbuild.steps.lowering_options import LoweringOptions


def add_parser(verbs: Any, name: str, help: str, more: str = "") -> argparse.ArgumentParser:
    """Adds a verb and returns its parser.

    Options cannot be abbreviated: otherwise a new option could change the meaning of an old script.

    Args:
        verbs: What argparse's `add_subparsers` returned.
        name: The verb.
        help: What it does, for the list of verbs: a phrase without a full stop.
        more: Further sentences for the help of the verb itself.
    """
    description = f"{help[:1].upper()}{help[1:]}. {more}".strip()
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=help, description=description, allow_abbrev=False)
    parser.register("type", Path, _path)
    return parser


def add_step_parser(verbs: Any, name: str, summary: str, *plans: str) -> argparse.ArgumentParser:
    """Adds a verb for build rules and returns its parser. `--help` does not list such a verb.

    Args:
        verbs: What argparse's `add_subparsers` returned.
        name: The verb.
        summary: What it does.
        plans: The options of `etbuild plan` that wrote the plans of the step, such as `lower-plan`.
    """
    parser: argparse.ArgumentParser = verbs.add_parser(
        name, description=f"{summary}. Build rules call it.", allow_abbrev=False
    )
    for plan in plans:
        add_path(parser, plan.replace("-", "_").upper(), help=f"the file that `etbuild plan --{plan}` wrote")
    if plans:
        _add_surroundings(parser)
    return parser


def add_value(parser: argparse._ActionsContainer, option: str, help: str, **more: Any) -> None:
    """Adds an option with a value, or an argument.

    Args:
        parser: The parser, or a group of it.
        option: The option and the word for its value, such as `-o, --out DIR`; of an argument only the word.
        help: What it does.
        more: Further arguments of argparse's `add_argument`.
    """
    *names, metavar = option.replace(",", "").split(" ")
    parser.add_argument(*names or [metavar.lower()], metavar=metavar, help=help, **more)


def add_path(parser: argparse._ActionsContainer, option: str, help: str, **more: Any) -> None:
    """Adds an option with the path of a file or a directory, or such an argument. The arguments are those of
    `add_value`."""
    add_value(parser, option, help=help, type=Path, **more)


def add_flag(parser: argparse._ActionsContainer, option: str, help: str, **more: Any) -> None:
    """Adds an option without a value. The arguments are those of `add_value`."""
    parser.add_argument(option, action="store_true", help=help, **more)


def add_repeatable(parser: argparse._ActionsContainer, option: str, help: str, **more: Any) -> None:
    """Adds an option that may be given several times: its values become a list. The arguments are those of
    `add_value`."""
    name, metavar = option.split(" ")
    parser.add_argument(name, action="append", default=[], metavar=metavar, help=f"{help} (repeatable)", **more)


def _path(name: str) -> Path:
    """The path of an argument. Refuses an empty one, as of an unset variable: it would mean `.`."""
    if not name:
        raise argparse.ArgumentTypeError("the name is empty; write `.` for the current directory")
    return Path(name)


def add_inputs(parser: argparse._ActionsContainer) -> None:
    """Adds the options that choose a variant and parameters, and name sources and data."""
    add_variant(parser)
    add_settings(parser)
    add_roots(parser)
    add_declared(parser)


def add_manifest(parser: argparse.ArgumentParser) -> None:
    """Adds the argument that names the manifest."""
    add_path(parser, "MANIFEST", help="the manifest, such as model.yaml")


def add_manifests(parser: argparse.ArgumentParser, help: str = "a manifest, or a folder: each manifest in it") -> None:
    """Adds the argument that names manifests, and folders of them."""
    parser.add_argument("manifests", type=Path, nargs="+", metavar="MANIFEST", help=help)


def add_variant(parser: argparse._ActionsContainer, several: bool = False) -> None:
    """Adds the option that names a variant of the manifest, or several of them."""
    if several:
        add_repeatable(
            parser,
            "--variant NAME",
            help="take this variant of the manifest; `all`: every variant, and the manifest without one",
            dest="variants",
        )
    else:
        add_value(parser, "--variant NAME", help="take this variant of the manifest")


def add_settings(parser: argparse._ActionsContainer) -> None:
    """Adds the option that sets parameters of the manifest."""
    add_repeatable(parser, "--set NAME=VALUE", help="set a parameter of the manifest", dest="settings")


def named_value(option: str, text: str, form: str = "NAME=VALUE") -> tuple[str, str]:
    """Splits a value of the form `NAME=VALUE`.

    Args:
        option: The option, for the error.
        text: The value.
        form: Its form, for the error.

    Raises:
        InputError: The value has another form: it has no `=`, or nothing before it.
    """
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise InputError.of(f"{option} {text}: expected {form}")
    return name, value


def settings(options: argparse.Namespace) -> dict[str, str]:
    """Returns the values that `--set` gives to parameters, by name.

    Raises:
        InputError: A value has another form, or a parameter has two values.
    """
    found: dict[str, str] = {}
    for text in options.settings:
        name, value = named_value("--set", text)
        if name in found and found[name] != value:
            raise InputError.of(f"--set: the parameter `{name}` is set twice, to {found[name]} and to {value}")
        found[name] = value
    return found


def add_roots(parser: argparse._ActionsContainer) -> None:
    """Adds the option for further directories to search."""
    add_repeatable(
        parser,
        "--root DIR",
        help="also search this directory for sources and data, after the directory of the manifest",
        type=Path,
    )


def add_declared(parser: argparse._ActionsContainer) -> None:
    """Adds the options that declare sources and data by name."""
    add_repeatable(
        parser, "--source NAME=FILE", help="declare a source file by its import path, such as models/net.py=FILE"
    )
    add_data(parser)


def add_data(parser: argparse._ActionsContainer) -> None:
    """Adds the option that declares a data file by name."""
    add_repeatable(
        parser,
        "--data NAME=FILE",
        help="declare a data file by the name that the manifest uses; of a directory, all its files",
    )


def add_exported(parser: argparse.ArgumentParser) -> None:
    """Adds the options for the files of `etbuild export`."""
    add_path(parser, "--export DIR", help="the directory that `etbuild export` wrote", required=True)
    add_repeatable(parser, "--exported NAME=FILE", help="an exported method outside of DIR")
    add_path(parser, "--lines FILE", help="the file that `etbuild export --lines` wrote outside of DIR")


def exported(options: argparse.Namespace) -> ExportFiles:
    """Returns the files of the export, from the options of `add_exported`."""
    from etbuild.export.layout import ExportFiles

    methods = declared("--exported", options.exported)
    files = ExportFiles(options.export, methods) if methods else ExportFiles.below(options.export)
    return replace(files, lines_file=options.lines)


def add_lowering_options(parser: argparse._ActionsContainer) -> None:
    """Adds the options for the speed of lowering. They do not change the artifacts."""
    add_value(
        parser,
        "--jobs N",
        help="number of methods to lower at the same time (default: number of processors)",
        type=count,
    )
    add_flag(parser, "--no-accelerate", help="lower with unmodified ExecuTorch: slower, same bytes")


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Returns the type of an option with a whole number, from `least` to `most`."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
            limits = f" of at least {least}" if most is None else f" from {least} to {most}"
            raise argparse.ArgumentTypeError(f"{text} is not a whole number{limits}")
        return int(text)

    return parse


count = whole(1)
"""The type of an option with a number of things."""


def lowering_options(options: argparse.Namespace) -> LoweringOptions:
    """Returns the values of the options of `add_lowering_options`."""
    from etbuild.steps.lowering_options import LoweringOptions, processors

    return LoweringOptions(not options.no_accelerate, options.jobs or processors())


def declared(option: str, values: list[str]) -> dict[str, Path]:
    """Returns the files of a repeated option `NAME=FILE` by name.

    Raises:
        InputError: A value has another form, or a name has two files.
    """
    by_name: dict[str, Path] = {}
    for value in values:
        name, separator, path = value.partition("=")
        if not separator or not name or not path:
            raise InputError.of(f"{option} {value}: expected NAME=FILE")
        if name in by_name and by_name[name] != Path(path):
            raise InputError.of(f"{option}: the name `{name}` is given twice, for {by_name[name]} and for {path}")
        by_name[name] = Path(path)
    return by_name


def inputs(options: argparse.Namespace, roots: list[Path]) -> Inputs:
    """Returns the sources and data that a build may read, from the options of `add_declared`.

    Raises:
        InputError: A declaration or a root is wrong.
    """
    from etbuild.key.declared import Inputs

    sources = declared("--source", getattr(options, "source", []))
    return Inputs.named(sources, declared("--data", options.data), roots)


def watch(options: argparse.Namespace) -> Watch:
    """Returns a watch that refuses undeclared reads in a step of a build rule. The driver itself may use the files of
    the options."""
    from functools import partial

    from etbuild.guard.reads import watched_reads

    values = [each for value in vars(options).values() for each in (value if isinstance(value, list) else [value])]
    named = [Path(each.partition("=")[2]) if isinstance(each, str) else each for each in values]
    paths = [each for each in named if isinstance(each, Path) and each != Path()]
    linked = [file for path in paths if path.is_dir() for file in path.rglob("*") if file.is_symlink()]  # in sandboxes
    return partial(watched_reads, given=[path if os.path.lexists(path) else path.parent for path in [*paths, *linked]])


def _add_surroundings(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a step that do not change what it makes."""
    add_path(
        parser,
        "--positions FILE",
        help="the line numbers of the manifest, which `etbuild plan --positions` wrote: errors then name them",
    )
    add_unused_inputs(parser)
    add_value(
        parser,
        "--reserved-memory MB",
        help="how much memory the build system reserved for this step; a note says if it took more",
        type=count,
    )


def add_unused_inputs(parser: Any) -> None:
    """Adds the option for Bazel's `unused_inputs_list`."""
    add_path(
        parser,
        "--unused-inputs FILE",
        help="write the names of the inputs that cannot change the results of the step to FILE, in Bazel's form",
    )


@contextmanager
def with_positions(options: argparse.Namespace, lines: Path | None = None) -> Iterator[list[Path]]:
    """Within this context, errors get the manifest's lines. Without an error, writes the list of `--unused-inputs`:
    files for messages only, and those in the yielded list. Says if the step took more than `--reserved-memory`.

    Args:
        options: The options of a step.
        lines: The file with the lines of the sources, if only messages need it.
    """
    from etbuild.files import json_file
    from etbuild.publishing import artifacts

    unused = [path for path in (options.positions, lines) if path is not None]
    try:
        yield unused
    except EtbuildError as error:
        from etbuild.manifest.positions import located
        from etbuild.plan.positions import positions_from_json

        positions: Positions = {}
        if options.positions is not None:
            with suppress(InputError):  # an error in this file must not hide the error itself
                read = json_file.read(options.positions, json_file.Format("positions", "plan#positions"))
                positions = positions_from_json(read)
        raise located(error, positions) from error
    if options.unused_inputs is not None:
        artifacts.replace(options.unused_inputs, "".join(f"{path}\n" for path in unused).encode())
    if options.reserved_memory is not None:
        tell_memory(options.reserved_memory)


RESOURCE_SETS = {"mem_512m": 512, "mem_1g": 1024, **{f"mem_{size}g": 1024 * size for size in (2, 4, 8, 16, 32)}}
"""The memory that a target can reserve, in MB, by the values of its attribute `resource_set`."""


def tell_memory(reserved: int) -> None:
    """Prints a note if this step took more memory than was reserved for it, in MB."""
    from etbuild.surroundings import memory

    taken = memory.peak() >> 20
    if taken <= reserved:
        return
    advice = "no `resource_set` is that large: with a lower `--jobs` of Bazel, fewer steps run at the same time"
    if fitting := [name for name, size in RESOURCE_SETS.items() if taken <= size]:
        advice = f'write `resource_set = "{fitting[0]}"` in its target'
    print(
        f"note: this step took {taken} MB of memory, and {reserved} MB were reserved for it: {advice}", file=sys.stderr
    )


def add_rule_names(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Adds a group of options for build rules, with the names of the manifest and the program. Returns the group."""
    rule = parser.add_argument_group("for build rules")
    add_value(rule, "--manifest-name NAME", help="name of the manifest in error messages")
    add_value(rule, "--program-name NAME", help="the name of the program, in place of the manifest's")
    return rule
