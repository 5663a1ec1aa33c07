"""The option `--weights`: one program for each checkpoint. They share the export and the templates of methods."""

from __future__ import annotations

import argparse
import glob
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from etbuild.cli.options import add_repeatable
from etbuild.errors import BuildError, EtbuildError, InputError, Problem
from etbuild.files.weights_suffixes import GGUF_SUFFIX, INDEX_SUFFIXES, WEIGHTS_SUFFIXES

if TYPE_CHECKING:
    from etbuild.key.declared import Inputs
    from etbuild.manifest import sections
    from etbuild.manifest.validate import Manifest

_SUFFIXES = (*INDEX_SUFFIXES, *WEIGHTS_SUFFIXES, GGUF_SUFFIX)
CHARACTERS = f"{string.ascii_letters}{string.digits}_-"
"""The characters that the name of a checkpoint keeps. Others become `_`."""
_SHOWN = 3  # an error of several programs names at most so many of them


def add_weights(parser: argparse.ArgumentParser) -> None:
    """Adds the option."""
    add_repeatable(
        parser,
        "--weights PATTERN",
        "build a program NAME.STEM for each of these checkpoints, in place of the manifest's `model.weights`: a file, "
        "a folder, or a pattern in quotes, such as 'step_*.safetensors'",
    )


def each_checkpoint(
    loaded: Sequence[Manifest], given: Inputs, patterns: Sequence[str]
) -> list[tuple[Manifest, Inputs]]:
    """The programs to build: each program of the manifest with each checkpoint.

    Args:
        loaded: The manifest, with each variant that is built.
        given: The sources and data that the builds may read.
        patterns: The values of `--weights`. Without values, each program has the weights of its manifest.

    Raises:
        InputError: A pattern finds nothing, two checkpoints would give programs of one name, or a manifest has not
            exactly one checkpoint.
    """
    if not patterns:
        return [(each, given) for each in loaded]
    found = by_name([path for pattern in patterns for path in _found(pattern)])
    return [_with(each, given, stem, path) for each in loaded for stem, path in found.items()]


def directories(patterns: Sequence[str]) -> Iterator[Path]:
    """The directories in which files of these patterns may appear."""
    for pattern in patterns:
        path = Path(pattern)
        while glob.has_magic(str(path)):
            path = path.parent
        yield path if path.is_dir() else path.parent


def _found(pattern: str) -> list[Path]:
    paths = sorted(map(Path, glob.glob(pattern))) if glob.has_magic(pattern) else [Path(pattern)]  # noqa: PTH207 - absolute
    if not paths or not paths[0].exists():
        raise InputError.of(f"--weights {pattern}: no such file", "patterns begin in the current directory")
    return paths


def by_name(paths: Sequence[Path]) -> dict[str, Path]:
    """The checkpoints by the ends of their programs' names: a file's name, or its folder's if all files are named
    alike."""
    one_name = len({path.name for path in paths}) == 1 and len(set(paths)) > 1
    found: dict[str, Path] = {}
    for path in dict.fromkeys(paths):
        name = path.resolve().parent.name if one_name else path.name.removesuffix(_kind(path.name))
        stem = re.sub(f"[^{CHARACTERS}]", "_", name)
        if stem in found:
            message = f"--weights: the programs of {found[stem]} and {path} would both be called NAME.{stem}"
            raise InputError.of(message, "rename one of them")
        found[stem] = path
    return found


def _with(loaded: Manifest, given: Inputs, stem: str, path: Path) -> tuple[Manifest, Inputs]:
    """A program with another checkpoint, and its inputs. The checkpoint is declared below the name of the program,
    where no other file is."""
    from etbuild.key.declared import Inputs

    model, program = loaded.data["model"], f"{loaded.data['name']}.{stem}"
    before = _checkpoint(model)
    old = before if isinstance(before, str) else before["file"]
    kind = _kind(path.name)
    if not path.is_dir() and (not kind or (kind == GGUF_SUFFIX) != old.endswith(GGUF_SUFFIX)):
        raise InputError.of(f"--weights {path}: no checkpoint like `{old}`, which it would replace")
    if (taken := next((root for root in given.roots if (root / program).exists()), None)) is not None:
        raise InputError.of(
            f"--weights {path}: its program would be called like {taken / program}", "rename one of them"
        )
    new = program if path.is_dir() else f"{program}/{path.name}"
    files = {new: path}
    if kind in INDEX_SUFFIXES:  # the shards of an index are beside it
        files = {f"{program}/{each.name}": each for each in path.parent.iterdir() if each.is_file()}
    changed: sections.Model = {**model, "weights": _renamed(before, new)}
    data: sections.Manifest = {**loaded.data, "name": program, "model": changed}
    if licenses := data.get("metadata", {}).get("weights_licenses"):
        named = {new if name == old else name: value for name, value in licenses.items()}
        data["metadata"] = {**data["metadata"], "weights_licenses": named}
    return replace(loaded, data=data), Inputs.named(given.sources, {**given.data, **files}, given.roots)


def _checkpoint(model: sections.Model) -> str | sections.Checkpoint:
    """The only checkpoint of a manifest."""
    weights = model.get("weights", [])
    entries = weights if isinstance(weights, list) else [weights]
    if len(entries) != 1:
        message = f"`--weights` needs a manifest with one checkpoint; this one has {len(entries)}"
        several = "a manifest with several takes others in its `variants`"
        raise InputError.at(("model",), message, several if entries else "write `weights: FILE` under `model`")
    return entries[0]


def _renamed(checkpoint: str | sections.Checkpoint, name: str) -> str | sections.Checkpoint:
    return name if isinstance(checkpoint, str) else {**checkpoint, "file": name}


def _kind(name: str) -> str:
    return next((suffix for suffix in _SUFFIXES if name.endswith(suffix)), "")


def in_programs(errors: Mapping[str, EtbuildError]) -> EtbuildError:
    """Joins the errors of programs, given by name. A problem of many programs is reported once."""
    programs: dict[Problem, list[str]] = {}
    for name, error in errors.items():
        for problem in error.problems:
            programs.setdefault(problem, []).append(name)
    problems = [replace(problem, message=problem.message + _in(names)) for problem, names in programs.items()]
    kinds = {type(error) for error in errors.values()}
    return kinds.pop()(problems) if len(kinds) == 1 else BuildError(problems)


def _in(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f" (in the program {names[0]})"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f" (in the programs {', '.join(names[:_SHOWN])}{more})"
