"""Whether ExecuTorch's own tokenizer reads a `tokenizer.json` as Hugging Face's library does.

Applications with ExecuTorch's runner have its tokenizer. It knows fewer forms, and decodes each token by itself.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

from etbuild.errors import printable
from etbuild.exception_text import summary
from etbuild.surroundings.process_state import stream_to
from etplugins.tokenizer import limited
from etplugins.tokenizer.runner_tokenizer import bytes_as_text, fails, of_runner

_TEXTS = (
    "the day and the day",
    "Don't say \"so\": it's 12,345.67 km/h (or 3e-5)!",
    "  two  spaces, a\ttab,\nlines\n\n and an end ",
    "café naïve Ångström e\u0301 ñ",
    "Привет, мир. 中文。",
    "日本語の文章、中文句子。한국어 문장",
    "مرحبا بالعالم שלום नमस्ते",
    "🙂 👩‍👩‍👧‍👦 🇩🇪",
    "for (int i = 0; i < n; ++i) { a[i] += 0x1F; }",
)
_REASON = re.compile(r"^E tokenizers:\S+\] (?:Failed to \w+ \w+: )?(.+)$", re.MULTILINE)
_MOST = 40  # characters of a text in a message


def difference(file: str) -> str | None:
    """What ExecuTorch's tokenizer does otherwise, as the end of a sentence for users. None if both agree about texts of
    many kinds and about each token, or if Hugging Face's library does not read the file.

    Args:
        file: The path of the file.

    Raises:
        InputError: A tokenizer takes too much memory or time.
        BuildError: The process of a tokenizer was killed.
    """
    if not file.endswith(".json"):
        return None
    found: str | None = limited.result(fails(file), lambda: _difference(file))
    return found


def reference(file: str) -> Any:
    """Hugging Face's tokenizer of a file, which neither cuts texts nor fills them up."""
    from tokenizers import Tokenizer

    found = Tokenizer.from_file(file)
    found.no_truncation()
    found.no_padding()
    return found


def _difference(file: str) -> str | None:
    try:
        right = reference(file)
    except Exception:  # noqa: BLE001 - the library raises `Exception` itself
        return None
    if isinstance(runner := _runner(file), str):
        return runner
    with bytes_as_text():
        return next((found for each in (_of_texts, _of_tokens) for found in each(right, runner)), None)


def _runner(file: str) -> Any:
    """ExecuTorch's tokenizer; a text for users if it does not read the file. Its log has the reason."""
    with tempfile.TemporaryFile() as log:
        try:
            with stream_to(2, log.fileno()):
                return of_runner(file)
        except RuntimeError as error:
            log.seek(0)
            reasons = _REASON.findall(log.read().decode("utf-8", "replace"))
            return f"cannot read it: {printable(reasons[-1] if reasons else summary(error))}"


def _of_texts(right: Any, runner: Any) -> Iterator[str]:
    """Yields what differs for texts: first their tokens, then the text that a program writes token by token."""
    marks = [token.content for token in right.get_added_tokens_decoder().values() if token.special][:8]
    texts = (*_TEXTS, "".join(f"{mark}user\nhi" for mark in marks))
    for text in (each for each in texts if _knows(right, each)):
        for starts in (False, True):  # the runner adds the tokens that begin a text
            expected = right.encode(text, add_special_tokens=starts).ids
            try:
                tokens = list(runner.encode(text, int(starts), 0))
            except (RuntimeError, ValueError) as error:
                yield f"cannot encode {_shown(text)}: {printable(summary(error))}"
                continue
            if tokens != expected:
                yield f"makes {_listed(tokens)} of {_shown(text)}, which are the tokens {_listed(expected)}"
        tokens = right.encode(text, add_special_tokens=False).ids
        means, written = _text(right, tokens), _written(runner, tokens)
        if written is None or written.lstrip() != means.lstrip():  # a text may begin with a space of its first word
            yield f"writes {_shown(written)} for the tokens of {_shown(means)}"


def _knows(right: Any, text: str) -> bool:
    """Whether a tokenizer takes each character. One with few words leaves some out, or refuses them."""
    try:
        parts = right.encode(text, add_special_tokens=False).offsets
    except Exception:  # noqa: BLE001 - the library raises `Exception` itself
        return False
    known = {index for start, end in parts for index in range(start, end)}
    return all(index in known or character.isspace() for index, character in enumerate(text))


def _of_tokens(right: Any, runner: Any) -> Iterator[str]:
    """Yields what differs for the text of single tokens, each after another one."""
    before = right.encode("a", add_special_tokens=False).ids[-1:] if _knows(right, "a") else []
    start = right.decode(before, skip_special_tokens=False)
    for token in sorted(right.get_vocab(with_added_tokens=True).values()):
        text = right.decode([*before, token], skip_special_tokens=False)
        written = _written(runner, [token])
        is_whole = text.startswith(start) and "\ufffd" not in text
        if written is None or (is_whole and written != text[len(start) :]):
            means = _shown(text[len(start) :]) if is_whole else "a part of a character"
            yield f"writes {_shown(written)} for the token {_shown(right.id_to_token(token))}, which is {means}"


def _text(right: Any, tokens: Iterable[int]) -> str:
    """The text of tokens, as an application shows it while they come."""
    from tokenizers.decoders import DecodeStream

    stream = DecodeStream(skip_special_tokens=False)
    return "".join(stream.step(right, token) or "" for token in tokens)


def _written(runner: Any, tokens: Iterable[int]) -> str | None:
    """The text of tokens, each decoded by itself, as ExecuTorch's runner writes them; None if that fails."""
    try:
        pieces = [runner.decode(token).encode("utf-8", "surrogateescape") for token in tokens]
    except (RuntimeError, ValueError):
        return None
    return b"".join(pieces).decode("utf-8", "replace")


def _shown(text: str | None) -> str:
    if text is None:
        return "nothing, but fails,"
    return f"`{printable(text[:_MOST])}{'...' if len(text) > _MOST else ''}`"


def _listed(tokens: list[int]) -> str:
    return f"[{', '.join(map(str, tokens[:5]))}{', ...' if len(tokens) > 5 else ''}]"
