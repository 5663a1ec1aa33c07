"""The files of a tokenizer: which of them ExecuTorch's runner reads, and which have the chat template."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from etbuild.errors import InputError
from etbuild.files import json_file, regular_files

RUNNERS = ("tokenizer.json", "tokenizer.model")
"""The names on hubs of files that ExecuTorch's runner reads: Hugging Face's, or those of SentencePiece or tiktoken."""
TEMPLATE = "chat_template.jinja"
SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", TEMPLATE)
"""The files that transformers reads beside a tokenizer, for special tokens and the chat template. Older files have the
template in `tokenizer_config.json`."""


def preferred(files: Iterable[str]) -> str | None:
    """The file of a tokenizer that ExecuTorch's runner reads. None if there is none.

    Args:
        files: The paths of all files of the tokenizer.
    """
    found = [*files]
    named = [each for name in RUNNERS for each in found if PurePosixPath(each).name == name]
    others = [each for each in found if not each.endswith(("config.json", *SETTINGS))]
    return next(iter([*named, *others]), None)


def have_template(files: Iterable[Path]) -> bool:
    """Whether the files of a tokenizer have a chat template.

    Args:
        files: Their paths.

    Raises:
        InputError: A file cannot be read.
    """
    found = [*files]
    return any(each.name == TEMPLATE for each in found) or any(map(_has_entry, found))


def _has_entry(file: Path) -> bool:
    """Whether a file is the settings of a tokenizer with a chat template."""
    try:
        return file.name == SETTINGS[0] and b'"chat_template"' in regular_files.read(file, json_file.MAX_BYTES)
    except OSError as error:
        raise InputError.of(f"{file}: cannot be read: {error.strerror}") from None
