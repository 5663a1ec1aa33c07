"""Whether ExecuTorch's own tokenizers read a `tokenizer.json` as Hugging Face's library does.

Applications with ExecuTorch's runner have its tokenizers. They know fewer forms, and decode each token by itself.
"""

from __future__ import annotations

import itertools
import json
import re
import tempfile
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etbuild.errors import printable
from etbuild.exception_text import summary
from etbuild.surroundings.process_state import stream_to
from etplugins.tokenizer import limited, other_forms
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
    "the day.. and so on... the end",
    "a == b // c -- d!! e?? (f)) [[g]]",
    "\n\ta wide\u3000space,\u00a0and an end of lines\n\n",
)
_MOST_LITERALS = 32
_FRAMES = ("a {0} b{0}c\n{0}\n b", "a {0} b{0}c", "{0} {0}")
"""Texts with an added token, which may take the spaces around it, or only be one between other characters."""
_REASON = re.compile(r"^E tokenizers:\S+\] (?:Failed to \w+ \w+: )?(.+)$", re.MULTILINE)
_MOST = 40  # characters of a text in a message


@dataclass(frozen=True)
class Difference:
    """What ExecuTorch's tokenizer does otherwise than Hugging Face's library.

    Attributes:
        what: What it does, as the end of a sentence for users.
        suffix: The end of the name of `content`.
        content: Another form of the file, which one of ExecuTorch's tokenizers reads right; None if none is known.
        needs: What texts must be for it, as the end of a sentence; empty for all texts.
    """

    what: str
    suffix: str = ""
    content: bytes | None = None
    needs: str = ""


def difference(file: str) -> Difference | None:
    """What ExecuTorch's tokenizer does otherwise. None if both agree about texts of many kinds and about each token, or
    if Hugging Face's library does not read the file.

    Args:
        file: The path of the file.

    Raises:
        InputError: A tokenizer takes too much memory or time.
        BuildError: The process of a tokenizer was killed.
    """
    if not file.endswith(".json"):
        return None
    found = limited.result(fails(file), lambda: _compared(file))
    return None if found is None else Difference(*found)


def _compared(file: str) -> tuple[str, str, bytes | None, str] | None:
    """The difference of a file, and another form of it that has none."""
    try:
        right = reference(file)
    except Exception:  # noqa: BLE001 - the library raises `Exception` itself
        return None
    what = _difference(right, file)
    if what is not None:
        with tempfile.TemporaryDirectory() as directory:
            for index, form in enumerate(other_forms.of_json(Path(file).read_bytes())):
                other = Path(directory) / f"{index}{form.suffix}"
                other.write_bytes(form.content)
                if _difference(right, str(other), form) is None:
                    return what, form.suffix, form.content, form.needs
    return None if what is None else (what, "", None, "")


def reference(file: str) -> Any:
    """Hugging Face's tokenizer of a file, which neither cuts texts nor fills them up."""
    from tokenizers import Tokenizer

    found = Tokenizer.from_file(file)
    found.no_truncation()
    found.no_padding()
    return found


def _difference(right: Any, file: str, form: other_forms.Form | None = None) -> str | None:
    """What ExecuTorch's tokenizer of a file does otherwise than `right`. The file may be another form: then only texts
    that it takes are compared, and no token apart. A program never writes those, and the runner adds them by number."""
    if isinstance(runner := _runner(file), str):
        return runner
    form = form or other_forms.Form("", b"")
    with bytes_as_text():
        return next(itertools.chain(_of_texts(right, runner, form), _of_tokens(right, runner, form.apart)), None)


def _runner(file: str) -> Any:
    """ExecuTorch's tokenizer; a text for users if it does not read the file. Its log has the reason."""
    with tempfile.TemporaryFile() as log:
        try:
            with stream_to(2, log.fileno()):
                return of_runner(file)
        except RuntimeError as error:
            log.seek(0)
            reasons = _REASON.findall(log.read().decode("utf-8", "replace")) or _kind(file)
            return f"cannot read it: {printable(reasons[-1] if reasons else summary(error))}"


def _kind(file: str) -> list[str]:
    """Why ExecuTorch's tokenizer reads no words of a `tokenizer.json`: they are not those of BPE. Empty if unknown."""
    try:
        kind = json.loads(Path(file).read_bytes())["model"]["type"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return []
    return [f"its model is {kind}"] if isinstance(kind, str) and kind != "BPE" else []


def _of_texts(right: Any, runner: Any, form: other_forms.Form) -> Iterator[str]:
    """Yields what differs for texts: first their tokens, then the text that a program writes token by token."""
    marks = [token.content for token in right.get_added_tokens_decoder().values() if token.special][:8]
    known = [*_TEXTS, *([] if form.plain else ["".join(f"{mark}user\nhi" for mark in marks)])]
    texts = [(each, _knows) for each in [*known, *_with_added(right, form.plain)]]
    texts += [(each, _encodes) for each in _with_literals(right)]
    normal = ((unicodedata.normalize(form.normal, each) if form.normal else each, takes) for each, takes in texts)
    for text in (each for each, takes in normal if takes(right, each)):
        tokens = right.encode(text, add_special_tokens=False).ids
        for starts, expected in enumerate((tokens, right.encode(text, add_special_tokens=True).ids)):
            counts = _around(tokens, expected) if form.plain else (starts, 0)
            try:
                made = list(runner.encode(text, *counts))
            except (RuntimeError, ValueError, TypeError) as error:
                yield f"cannot encode {_shown(text)}: {printable(summary(error))}"
                continue
            if made != expected:
                yield f"makes {_listed(made)} of {_shown(text)}, which are the tokens {_listed(expected)}"
        means, written = _text(right, tokens), _written(runner, tokens)
        if written is None or written.lstrip() != means.lstrip():  # a text may begin with a space of its first word
            yield f"writes {_shown(written)} for the tokens of {_shown(means)}"


def _with_literals(right: Any) -> Iterator[str]:
    """Yields a text with each literal, between letters if the tokenizer knows them."""
    frame = "a{0} b {0}{0}" if _knows(right, "a b") else "{0} {0}"
    return map(frame.format, itertools.islice(_literals(right), _MOST_LITERALS))


def _with_added(right: Any, plain: bool) -> Iterator[str]:
    """Yields a text with an added token of each kind; without special ones if `plain`."""
    frame = next((each for each in _FRAMES if _knows(right, each.format(""))), _FRAMES[-1])
    kinds: dict[tuple[bool, ...], Any] = {}
    for token in right.get_added_tokens_decoder().values():
        kinds.setdefault((token.lstrip, token.rstrip, token.single_word, token.normalized, token.special), token)
    yield from (frame.format(each.content) for each in kinds.values() if not (plain and each.special))


def _encodes(right: Any, text: str) -> bool:
    """Whether a tokenizer takes a text, of which some characters may be replaced."""
    try:
        right.encode(text, add_special_tokens=False)
    except Exception:  # noqa: BLE001 - the library raises `Exception` itself
        return False
    return True


def _literals(right: Any) -> Iterator[str]:
    """Yields the literals that a tokenizer replaces, or at which it splits a text."""
    found = [json.loads(part.__getstate__()) for part in (right.normalizer, right.pre_tokenizer) if part is not None]
    while found:
        part = found.pop()
        if isinstance(part, dict):
            found += [each for key, each in part.items() if key != "precompiled_charsmap"]
            if isinstance(part.get("String"), str):
                yield part["String"]
        elif isinstance(part, list):
            found += part


def _around(tokens: list[int], expected: list[int]) -> tuple[int, int]:
    """How many tokens stand before and after a text. A model of SentencePiece is told these numbers."""
    before = next((at for at in range(len(expected)) if expected[at : at + len(tokens)] == tokens), 0)
    return before, max(0, len(expected) - len(tokens) - before)


def _knows(right: Any, text: str) -> bool:
    """Whether a tokenizer takes each character. One with few words leaves some out, or refuses them."""
    try:
        parts = right.encode(text, add_special_tokens=False).offsets
    except Exception:  # noqa: BLE001 - the library raises `Exception` itself
        return False
    known = {index for start, end in parts for index in range(start, end)}
    return all(index in known or character.isspace() for index, character in enumerate(text))


def _of_tokens(right: Any, runner: Any, apart: Collection[int]) -> Iterator[str]:
    """Yields what differs for the text of single tokens, each after another one."""
    before = right.encode("a", add_special_tokens=False).ids[-1:] if _knows(right, "a") else []
    start = right.decode(before, skip_special_tokens=False)
    for token in sorted({*right.get_vocab(with_added_tokens=True).values()} - {*apart}):
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
