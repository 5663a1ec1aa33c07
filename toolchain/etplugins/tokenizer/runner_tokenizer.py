"""The tokenizer with which ExecuTorch's runner reads a file."""

from __future__ import annotations

import codecs
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from etplugins.tokenizer import limited

T = TypeVar("T")


def with_tokenizer(file: str, work: Callable[[Any], T]) -> T:
    """Calls `work` with ExecuTorch's tokenizer of a file, in a process with limits of memory and time.

    Args:
        file: The path of the file.
        work: Gets the tokenizer.

    Raises:
        InputError: The tokenizer refuses the file or a text, or takes too much memory or time.
        BuildError: The process was killed.
    """
    return limited.result(fails(file), lambda: work(of_runner(file)))  # type: ignore[no-any-return]


def check(file: str, text: str) -> None:
    """Fails if the tokenizer of a file crashes, or takes too much memory or time, for a text. A refusal is no failure
    here: the runner, which knows more formats, reports it.

    Raises:
        InputError, BuildError: See `with_tokenizer`.
    """

    def encode() -> None:
        with suppress(RuntimeError):
            of_runner(file).encode(text, 0, 0)

    limited.result(fails(file), encode)


@contextmanager
def bytes_as_text() -> Iterator[None]:
    """Within this context, native code can make texts from bytes that are not UTF-8: they become surrogates.

    The bindings of runner and tokenizers decode each token strictly, but a token may be a part of a character.
    """
    strict = codecs.lookup_error("strict")
    codecs.register_error("strict", codecs.lookup_error("surrogateescape"))
    try:
        yield
    finally:
        codecs.register_error("strict", strict)


def fails(file: str) -> str:
    """The failure of a file's tokenizer, for messages."""
    return f"{Path(file).name}: ExecuTorch's tokenizer fails"


@functools.cache
def of_runner(file: str) -> Any:
    """Opens a file with the first of ExecuTorch's tokenizers that reads it, in the order of its runner: Hugging Face's,
    tiktoken's, SentencePiece's.

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
