"""`etbuild init`: writes the first manifest of a model, and its BUILD target."""

from __future__ import annotations

import argparse
import itertools
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild.cli.options import add_flag, add_parser, add_path, add_repeatable, add_value
from etbuild.errors import EtbuildError, InputError, printable

if TYPE_CHECKING:
    from etkit.authoring.first_manifest import First


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "init",
        "write the first manifest of a model, and its BUILD target if a workspace of Bazel is there",
        "They are a start: read them, and change them. Replaces no file.",
    )
    origin = parser.add_mutually_exclusive_group(required=True)
    add_path(
        origin,
        "--huggingface DIR",
        "a folder with config.json and weights, such as `save_pretrained` writes, or a GGUF file next to its "
        "config.json; only JSON files of it are read. Or hub:OWNER/NAME@REVISION, which is downloaded",
    )
    add_value(
        origin,
        "--factory MODULE:CALLABLE",
        "a callable of a source in the output directory; it and the methods of its module are called",
    )
    add_value(parser, "--kwargs JSON", "keyword arguments of the factory, such as '{\"layers\": 2}'", default="{}")
    add_repeatable(
        parser,
        "--adapter DIR",
        "a folder with a LoRA adapter of the model, as PEFT's `save_pretrained` writes it",
        type=Path,
    )
    add_flag(parser, "--no-check", "do not try whether the model can be exported, and whether the weights fit it")
    add_value(parser, "--name NAME", "name of the program (default: from the folder or the module)")
    add_flag(parser, "--bazel", "write the BUILD target outside of a workspace of Bazel too")
    add_path(
        parser,
        "-o, --out DIR",
        "directory for NAME.yaml and its files (default: the current directory)",
        dest="directory",
        default=Path(),
    )


def run(options: argparse.Namespace) -> int:
    """Writes the files, and prints what to do next."""
    from etkit.authoring import first_manifest
    from etkit.authoring.targets.update import BAZEL

    directory: Path = options.directory
    if options.huggingface is not None:
        first = _of_huggingface(options)
    elif options.adapter:
        raise InputError.of("`--adapter` goes with `--huggingface`", "for a factory, see the page `LoRA`")
    else:
        options.restart()
        first = first_manifest.of_factory(options.factory, options.kwargs, directory)
    if options.name is not None:
        first = first_manifest.renamed(first, options.name)
    manifest = directory / f"{first.name}.yaml"
    _write(manifest, first.manifest)
    if options.bazel or BAZEL.root(directory) is not None:
        _write_target(directory, first)
        if first.pins is not None:
            _write(directory / f"{first.name}.checkpoint.bzl", first.pins)
    sys.stdout.flush()  # so that notes come after the output, even if both go to one file
    for remark in first.remarks:
        print(f"note: {remark}", file=sys.stderr)
    print(f"next: {_command('build', manifest, first.roots)}")
    if first.runner == "executorch-llm/v1" and first.tokenizer:
        print(f"then: {_command('generate', manifest, first.roots, '--chat' if first.chats else 'Once upon a time')}")
    return 0


def _of_huggingface(options: argparse.Namespace) -> First:
    """The first manifest of a folder, or of a model of a hub."""
    from etkit.authoring import first_manifest
    from etkit.authoring.first_manifest import hub

    place, snapshot = options.huggingface, None
    if str(place).startswith(hub.PREFIX):
        snapshot = hub.download(str(place))
        place = hub.link(snapshot, options.directory)
    if options.no_check:
        return replace(
            next(first_manifest.of_huggingface(place, options.directory, options.adapter)), snapshot=snapshot
        )
    return replace(_tried(Path(place), options, snapshot is None), snapshot=snapshot)


def _tried(place: Path, options: argparse.Namespace, restarts: bool) -> First:
    """Tries the exports of first manifests. Returns the first that can be exported, which may ask for less.

    Args:
        place: The folder, or a GGUF file in it.
        options: The options of the verb.
        restarts: Whether the trial needs fixed surroundings. They lack the environment variables of the hub's client.
    """
    from etkit.authoring import first_manifest
    from etkit.authoring.first_manifest import trial
    from etkit.local.progress import Steps
    from etplugins.runtime.native_log import native_log_off

    if package := trial.missing():
        first = next(first_manifest.of_huggingface(place, options.directory, options.adapter))
        print(f"note: the export was not checked, because {package} is not installed", file=sys.stderr)
        return first
    candidates = first_manifest.of_huggingface(place, options.directory, options.adapter, trial.class_inputs)
    if restarts:
        options.restart()
    with os.fdopen(os.dup(2), "w") as terminal, native_log_off():
        progress = Steps(terminal)  # otherwise the stages would be shown only when all have ended
        found, failures = trial.of_folder(
            candidates, options.directory, lambda text: progress.stage(f"check the export: {text}")
        )
    if found is not None:
        for message in _messages(failures):
            print(f"note: a better manifest failed: {message}", file=sys.stderr)
        return found
    said = "a build of this model fails, so no manifest is written; `--no-check` writes it all the same"
    print(f"note: {said}", file=sys.stderr)
    for message in _messages(failures)[1:]:
        print(f"note: also tried: {message}", file=sys.stderr)
    raise failures[0]


def _messages(failures: Sequence[EtbuildError]) -> list[str]:
    """The messages of errors, each once."""
    return [*dict.fromkeys(printable(error.problems[0].message) for error in failures)]


def _write(path: Path, text: str) -> None:
    """Writes a new file. Replaces none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InputError.of(f"{path} exists, and is not replaced", "remove it, or choose another `--name`") from None
    except OSError as error:
        raise InputError.of(f"{path}: cannot be written: {error.strerror}") from None
    print(f"wrote {printable(str(path))}")


def _write_target(directory: Path, first: First) -> None:
    """Writes the BUILD file. If there is one already, prints what to add to it."""
    there = [directory / name for name in ("BUILD", "BUILD.bazel") if (directory / name).exists()]
    if there:
        print(f"{printable(str(there[0]))} exists. For Bazel, add to it:\n\n{first.target}")
    else:
        _write(directory / "BUILD", first.target)


def _command(verb: str, manifest: Path, roots: Sequence[Path], *arguments: str) -> str:
    searched = itertools.chain(*(("--root", str(root)) for root in roots))
    return shlex.join(["etbuild", verb, str(manifest), *arguments, *searched, "-o", "out"])
