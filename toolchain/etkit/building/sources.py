"""Sources that are built without a manifest, as `model.py:create`: the manifest is written for the build."""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild import plugins
from etbuild.cli.options import add_path, add_repeatable, add_value, inputs
from etbuild.errors import InputError, printable

if TYPE_CHECKING:
    from etbuild.key.declared import Inputs

NOT_USED: dict[str, Any] = {"input": [], "quantize": None, "backend": None, "save": None}
"""The options of a verb without them."""
_SOURCE = re.compile(r".*\.py:[A-Za-z_]\w*", re.DOTALL)
_OF_PACKAGE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True)
class GivenManifest:
    """A manifest that is built.

    Attributes:
        path: The file.
        directory: Where sources and data are looked for first.
        name: The file's name in errors; None for its path.
    """

    path: Path
    directory: Path
    name: str | None = None


def given_inputs(options: argparse.Namespace, directory: Path) -> Inputs:
    """The sources and data that the options let a build read, with those of a directory first."""
    return inputs(options, [directory, *options.root])


def add_source_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that take the place of a manifest."""
    add_repeatable(
        parser,
        "--input INPUT",
        "for FILE.py:CALLABLE: an input of `forward`, such as 1,3,64,64 or ids=int64[1,16]; without any, likely inputs "
        "are tried",
    )
    add_value(parser, "--quantize KIND", "for FILE.py:CALLABLE: int8, 8da8w or 8da4w")
    add_value(parser, "--backend NAME", "for FILE.py:CALLABLE: the backend, or `portable` (default: xnnpack)")
    add_path(parser, "--save FILE", "for FILE.py:CALLABLE: write the manifest that was used")


def is_source(path: Path) -> bool:
    """Whether an argument names a callable of a source, and no file."""
    return _SOURCE.fullmatch(str(path)) is not None and not path.exists()


@contextmanager
def with_written(options: argparse.Namespace, manifests: list[Path]) -> Iterator[list[GivenManifest]]:
    """The manifests of a command. For a source, writes one that is there for the build.

    Raises:
        InputError: The options do not fit what the command names.
    """
    sources = [each for each in manifests if is_source(each)]
    for each in manifests:
        if _OF_PACKAGE.fullmatch(str(each)) and not is_source(each) and not each.exists():
            raise InputError.of(f"{each}: is neither a manifest nor a function of a source")
    used = [f"--{name}" for name, unused in NOT_USED.items() if getattr(options, name) != unused]
    if used and not sources:
        raise InputError.of(f"{used[0]} is for a source, such as model.py:create: a manifest says this itself")
    if sources and len(manifests) > 1:
        raise InputError.of(f"{sources[0]}: a command builds only one source")
    if not sources:
        yield [GivenManifest(each, each.parent) for each in manifests]
        return
    options.restart()
    from etbuild.guard import children

    write = plugins.load("first_manifest", "source")
    given = (options.input, options.quantize, options.backend or "xnnpack")
    # In a process of its own: the code of the model may change the process in which it runs, as the build's does.
    first, root = children.run_one(partial(write, str(sources[0]), *given, partial(given_inputs, options)))
    for remark in first.remarks:
        print(f"note: {remark}", file=sys.stderr)
    if options.save is not None:
        _save(options.save, first.manifest, root)
        yield [GivenManifest(options.save, root)]
        return
    with tempfile.TemporaryDirectory(prefix="etbuild-") as scratch:
        path = Path(scratch, f"{first.name}.yaml")
        path.write_text(first.manifest, "utf-8")
        yield [GivenManifest(path, root, f"the manifest of {sources[0]}, which `--save` writes")]


def _save(path: Path, text: str, root: Path) -> None:
    """Writes a manifest, and says how it finds its sources in `root`. Replaces no other one."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        if path.is_dir():
            raise InputError.of(f"{path} is a directory", "name a file") from None
        if path.read_bytes() != text.encode():
            hint = "build it with `etbuild build`, remove it, or name another file"
            raise InputError.of(f"{path} exists, and is not replaced", hint) from None
        return
    except OSError as error:
        raise InputError.of(f"{path}: cannot be written: {error.strerror}") from None
    found = "" if path.resolve().parent == root else f"; build it with `--root {printable(str(root))}`"
    print(f"wrote {printable(str(path))}{found}", file=sys.stderr)
