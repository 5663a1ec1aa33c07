"""The files of a tokenizer: which of them ExecuTorch's runner reads, and which have the chat template."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

RUNNERS = ("tokenizer.json", "tokenizer.model")
"""What ExecuTorch's runner reads, as hubs name it: Hugging Face's file, or one of SentencePiece or tiktoken."""
TEMPLATE = "chat_template.jinja"
SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", TEMPLATE)
"""What transformers reads beside a tokenizer: special tokens and the chat template. Older files have the template in
`tokenizer_config.json`."""


def preferred(files: Iterable[str]) -> str | None:
    """The file of a tokenizer that ExecuTorch's runner reads. None if there is none.

    Args:
        files: The paths of all files of the tokenizer.
    """
    found = [*files]
    named = [each for name in RUNNERS for each in found if PurePosixPath(each).name == name]
    others = [each for each in found if not each.endswith(("config.json", *SETTINGS))]
    return next(iter([*named, *others]), None)


def may_have_template(file: str) -> bool:
    """Whether a file of a tokenizer may have the chat template.

    Args:
        file: Its path.
    """
    return PurePosixPath(file).name in (TEMPLATE, "tokenizer_config.json")
