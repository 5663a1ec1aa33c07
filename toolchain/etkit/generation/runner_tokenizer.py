"""The tokenizer with which ExecuTorch's runner reads a file."""

from __future__ import annotations

import functools
from typing import Any


@functools.cache
def of_runner(file: str) -> Any:
    """ExecuTorch's tokenizer of a file: Hugging Face's, or one of tiktoken or SentencePiece, as its runner tries them.

    Raises:
        RuntimeError: It cannot read the file.
    """
    import pytorch_tokenizers as known

    first, *others = [known.CppHFTokenizer] if file.endswith(".json") else [known.CppTiktoken, known.CppSPTokenizer]
    try:
        found = first()
        found.load(file)
    except RuntimeError:
        if not others:
            raise
        found = others[0]()
        found.load(file)
    return found
