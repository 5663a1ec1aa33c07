"""Finds the files of a checkpoint: a single file, an index with its shards, or a folder as a model hub delivers it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from etbuild import json_schema, plugins
from etbuild.errors import DocumentPath, InputError, printable
from etbuild.files import json_file, regular_files
from etbuild.files.weights_suffixes import INDEX_SUFFIXES, WEIGHTS_SUFFIXES, suffixes_of_plugins
from etbuild.inputs.given import Given, is_file

_IN_FOLDER = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
"""The files of a folder that may hold its weights. The first one that exists counts, as in transformers."""
WEIGHTS: DocumentPath = ("model", "weights")
"""The place in the manifest that names checkpoints."""
_LFS = b"version https://git-lfs"
_HTML = re.compile(rb"\s*(<!--.{0,200}?-->\s*)?<(!doctype\s+html|html)\b", re.IGNORECASE | re.DOTALL)
_BEGINNING = 512  # bytes


@dataclass(frozen=True)
class CheckpointFiles:
    """The files of a checkpoint.

    Attributes:
        files: The files that hold tensors, by the name of the declared input, in order.
        index: The name of the index; None if there is none.
        listed: For each tensor in the index, the name of the file that has to hold it. Empty without an index.
    """

    files: dict[str, Path]
    index: str | None = None
    listed: dict[str, str] = field(default_factory=dict)


def find(name: str, place: DocumentPath, inputs: Given) -> CheckpointFiles:
    """The files of a checkpoint.

    Args:
        name: What the manifest names: a file with tensors, an index, or a folder.
        place: The place in the manifest that names it.
        inputs: The declared inputs.

    Raises:
        InputError: A file is not declared or does not exist, the index is wrong, or the folder has no checkpoint.
    """
    name = _in_folder(name, place, inputs)
    if not name.endswith(INDEX_SUFFIXES):
        known = (*WEIGHTS_SUFFIXES, *suffixes_of_plugins())
        if not name.endswith(known) and inputs.find(name) is not None:
            raise InputError.at(place, f"`{name}` has an unknown file type", f"known: {', '.join(known)}")
        return CheckpointFiles({name: inputs.find_data(name, place)})
    listed = _read_index(name, place, inputs)
    return CheckpointFiles(
        {file: _shard(file, name, place, inputs) for file in sorted(set(listed.values()))}, name, listed
    )


def with_shards(names: Mapping[str, DocumentPath], inputs: Given) -> dict[str, DocumentPath]:
    """Names of declared inputs, each with the place in the manifest that names it. For a checkpoint of several files,
    the result has the names of its files.

    Raises:
        InputError: An index cannot be read, or one of its shards is missing.
    """
    return {file: names[name] for name, files in each_with_shards(names, inputs).items() for file in files}


def each_with_shards(names: Mapping[str, DocumentPath], inputs: Given) -> dict[str, tuple[str, ...]]:
    """For each name of a declared input, the names of its files. Only a checkpoint and a pattern have several.

    Args:
        names: The names, each with the place in the manifest that names it. A folder counts as a checkpoint only if
            `weights` names it.
        inputs: The declared inputs.

    Raises:
        InputError: An index cannot be read, one of its shards is missing, or a folder has no checkpoint.
    """
    found: dict[str, tuple[str, ...]] = {}
    for name, place in names.items():
        if place[:2] == WEIGHTS or name.endswith(INDEX_SUFFIXES):
            checkpoint = find(name, place, inputs)
            found[name] = (*checkpoint.files, *([checkpoint.index] if checkpoint.index is not None else []))
        elif place[-1:] == ("samples",):  # a pattern
            found[name] = plugins.load("samples", "names")(name, place, inputs)
        else:
            found[name] = (name,)
    return found


def _in_folder(name: str, place: DocumentPath, inputs: Given) -> str:
    """The name of the file or index in a folder. If the name is not that of a folder, the name itself."""
    if inputs.find(name) is not None or not inputs.is_folder(name):
        return name
    for file in _IN_FOLDER:
        if inputs.find(f"{name}/{file}") is not None:
            return f"{name}/{file}"
    hint = f"it needs one of {', '.join(_IN_FOLDER)}; for another name, write the name of the file"
    raise InputError.at(place, f"the folder `{name}` has no checkpoint", hint)


def _read_index(name: str, place: DocumentPath, inputs: Given) -> dict[str, str]:
    """For each tensor in the index, the name of the file that holds it. Raises InputError if a file is not beside the
    index."""
    index = read_json(name, place, inputs)
    wrong = json_schema.problems("checkpoint-index", index, most=1)
    if wrong:
        hint = "each shard has to be a file in the directory of the index" if len(wrong[0].path or ()) > 1 else None
        raise InputError.at(place, f"`{name}` is not the index of a checkpoint: {wrong[0].on_one_line()}", hint)
    return {tensor: str(PurePosixPath(name).with_name(shard)) for tensor, shard in index["weight_map"].items()}


def read_json(name: str, place: DocumentPath, inputs: Given, constants: Mapping[str, float] | None = None) -> Any:
    """The content of a declared JSON file.

    Args:
        name: The name of the file in the manifest.
        place: The place in the manifest that names it.
        inputs: The declared inputs.
        constants: As for `json_file.parse`.

    Raises:
        InputError: The file cannot be read, or is not JSON.
    """
    file = inputs.find_data(name, place)
    check_content(name, file, place)
    try:
        return json_file.parse(regular_files.read(file, json_file.MAX_BYTES), constants or {})
    except (OSError, ValueError) as error:
        raise InputError.at(place, f"cannot read `{name}`: {error}") from None


def _shard(name: str, index: str, place: DocumentPath, inputs: Given) -> Path:
    found = inputs.find(name)
    if found is None or not is_file(found):
        message = f"`{printable(name)}`, a shard that `{index}` names, is not a declared input"
        raise InputError.at(
            place, message, "put all shards into the directory of the index, and in Bazel list all of them"
        )
    return found


def check_content(name: str, file: Path, place: DocumentPath) -> None:
    """Fails if a file is what downloads often leave in place of the real content.

    Args:
        name: The file's name in the manifest.
        file: The file.
        place: The place in the manifest that names it.

    Raises:
        InputError: The file is empty, a pointer of git-lfs, or an HTML page; or it cannot be read.
    """
    try:
        with regular_files.opened(file) as opened:
            beginning = opened.read(_BEGINNING)
    except OSError as error:
        raise InputError.at(place, f"cannot read `{name}`: {error}") from None
    if not beginning:
        raise InputError.at(place, f"`{name}` is empty", "download it again")
    if beginning.startswith(_LFS):
        message = f"`{name}` is a pointer of git-lfs, not the content itself"
        raise InputError.at(place, message, "run `git lfs pull` in its repository")
    if _HTML.match(beginning):
        message = f"`{name}` is an HTML page, not the content itself"
        raise InputError.at(place, message, "download the file itself; the page may show it or ask for a login")
