"""Continues a text with Hugging Face's tokenizer, where ExecuTorch's runner does not read a tokenizer right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from etkit.running.generation.decoder import Decoder
from etplugins.tokenizer.conformance import reference
from etplugins.tokenizer.limited import Limited


def continuation(decoder: Decoder, file: str, prompt: str, most: int, temperature: float) -> Iterator[str]:
    """Yields the text that a program writes after a prompt, in pieces of whole characters.

    Args:
        decoder: The program.
        file: The path of its `tokenizer.json`.
        prompt: The text to continue.
        most: The largest number of tokens.
        temperature: How freely tokens are drawn; 0 for the most likely one.

    Raises:
        InputError: The tokenizer refuses the file or the prompt, or the prompt does not fit into the cache.
        BuildError: The runtime cannot run the program.
    """
    fails = f"{Path(file).name}: the tokenizer fails"
    with Limited(fails, lambda: _Stream(file)) as tokenizer:
        tokens: list[int] = tokenizer.call(fails, "begin", prompt)
        for token in decoder.written(tokens, most, temperature):
            if token in decoder.ends:
                return
            yield tokenizer.call(fails, "add", token)


class _Stream:
    """The tokenizer and the text so far, inside the process of the tokenizer."""

    def __init__(self, file: str) -> None:
        self._tokenizer: Any = reference(file)

    def begin(self, prompt: str) -> list[int]:
        """The tokens of a prompt, with those that begin a text."""
        from tokenizers.decoders import DecodeStream

        tokens = list(self._tokenizer.encode(prompt).ids)
        self._text = DecodeStream(skip_special_tokens=False)
        for token in tokens:
            self.add(token)
        return tokens

    def add(self, token: int) -> str:
        """The characters that a token completes."""
        return self._text.step(self._tokenizer, token) or ""
