"""Continues a text without ExecuTorch's runner, which may read a tokenizer wrongly, or not call a program's methods."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from etkit.running.generation.decoder import Decoder
from etplugins.tokenizer.conformance import reference
from etplugins.tokenizer.limited import Limited
from etplugins.tokenizer.runner_tokenizer import bytes_as_text, of_runner


def continuation(decoder: Decoder, file: str, prompt: str, most: int, temperature: float) -> Iterator[str]:
    """Yields the text that a program writes after a prompt, in pieces of whole characters.

    Args:
        decoder: The program.
        file: The path of its tokenizer: a `tokenizer.json`, or a file that only ExecuTorch's tokenizers read.
        prompt: The text to continue.
        most: The largest number of tokens.
        temperature: How freely tokens are drawn; 0 for the most likely one.

    Raises:
        InputError: The tokenizer refuses the file or the prompt, or the prompt does not fit into the cache.
        BuildError: The runtime cannot run the program.
    """
    fails = f"{Path(file).name}: the tokenizer fails"
    stream = _Stream if file.endswith(".json") else _RunnerStream
    with Limited(fails, lambda: stream(file)) as tokenizer:
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


class _RunnerStream:
    """ExecuTorch's tokenizer of a model of SentencePiece or tiktoken, as the runner uses it."""

    def __init__(self, file: str) -> None:
        self._tokenizer: Any = of_runner(file)
        self._text = codecs.getincrementaldecoder("utf-8")("replace")

    def begin(self, prompt: str) -> list[int]:
        """The tokens of a prompt, after the one that begins a text."""
        return list(self._tokenizer.encode(prompt, 1, 0))

    def add(self, token: int) -> str:
        """The characters that a token completes. A model may have more tokens, which crash the tokenizer."""
        if token >= self._tokenizer.vocab_size():
            return ""
        with bytes_as_text():
            return self._text.decode(self._tokenizer.decode(token).encode("utf-8", "surrogateescape"))
