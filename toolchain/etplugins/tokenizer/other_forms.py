"""Other forms of a `tokenizer.json`, for applications with ExecuTorch's tokenizers.

They read fewer forms than Hugging Face's library, and decode each token by itself. Some tokenizers can be written so
that they mean the same to them: a `tokenizer.json` for BPE, and a model of SentencePiece for Unigram. No form is taken
on trust: each is compared with the original file, and what differs is not used.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from etplugins.tokenizer import sentencepiece_model

_SPACE = "▁"
_NORMAL_FORMS = ("NFC", "NFD", "NFKC", "NFKD")
_MARKS = r"!-/:-@\[-`{-~\p{P}"
_BLANK = r"\t-\r \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"
_OF_WORDS = (
    r"\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200c}\x{200d}"
    r"\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189}"
)
"""Characters. `\\s` and `\\w` are only those of ASCII to ExecuTorch's tokenizer, but all to Hugging Face's library."""
_SPLITS = {
    "BertPreTokenizer": rf"[^{_BLANK}{_MARKS}]+|[{_MARKS}]",
    "Whitespace": rf"[{_OF_WORDS}]+|[^{_OF_WORDS}{_BLANK}]+",
    "WhitespaceSplit": rf"[^{_BLANK}]+",
}
"""What a kind of pre-tokenizer splits a text into. ExecuTorch's `Split` takes the matches and drops what is between."""
_OF_MARKS = {"Isolated": rf"[^{_MARKS}]+|[{_MARKS}]", "Contiguous": rf"[^{_MARKS}]+|[{_MARKS}]+"}
"""The same for `Punctuation`, by what it does with marks."""
_OF_SPACES = (
    {"type": "Prepend", "prepend": _SPACE},
    *({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": content} for content in (" ", _SPACE)),
)
"""Normalizers that a model of SentencePiece can have. The comparison tells whether it does the same with spaces."""
_OTHERWISE = re.compile(r"\\[wWbBhH]|\[:|&&")
"""What is another thing in the regular expressions of ExecuTorch's tokenizer than in those of Hugging Face's library:
`①` is a part of a word only for one of them."""


@dataclass(frozen=True)
class Form:
    """Another form of a tokenizer.

    Attributes:
        suffix: The end of the name of its file.
        content: The content of the file.
        apart: The tokens that begin and end a text, and the unknown one. No text contains them.
        normal: The normal form of Unicode that texts must have before it reads them; empty for any.
        plain: Whether texts must have no special tokens.
    """

    suffix: str
    content: bytes
    apart: frozenset[int] = frozenset()
    normal: Literal["NFC", "NFD", "NFKC", "NFKD", ""] = ""
    plain: bool = False

    @property
    def needs(self) -> str:
        """What texts must be, as the end of a sentence; empty for all texts."""
        if self.plain:
            return "if texts have no special tokens, which are added by number"
        return f"if texts are in the normal form {self.normal} of Unicode" if self.normal else ""


class _Unknown(Exception):
    """A part of a tokenizer has no other form."""


def of_json(content: bytes) -> Iterator[Form]:
    """Yields other forms of a `tokenizer.json`. None for what has no other form.

    Args:
        content: The content of the file, which Hugging Face's library reads.
    """
    try:
        tokenizer = json.loads(content)
        kind = tokenizer["model"].get("type") or ("BPE" if "merges" in tokenizer["model"] else "")
        if kind == "BPE":
            yield Form(".json", _as_bpe(tokenizer))
            yield Form(".json", _as_bpe(tokenizer), plain=True)  # special tokens may take the spaces around them
            normal = [each["type"] for each in _parts(tokenizer, "normalizer", "normalizers")]
            if sum(each in _NORMAL_FORMS for each in normal) == 1 and normal[0] in _NORMAL_FORMS:
                yield Form(".json", _as_bpe(tokenizer, normal[0]), normal=normal[0])
        elif kind == "Unigram":
            yield from _as_sentencepiece(tokenizer)
    except (_Unknown, ArithmeticError, ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError):
        return  # a file with an odd part has no other form


def _as_bpe(tokenizer: dict[str, Any], left_out: str = "") -> bytes:
    """The file with normalizers, splits and decoders that ExecuTorch's tokenizer knows. `left_out` is the type of a
    normalizer that is not written."""
    parts = [part for part in _parts(tokenizer, "normalizer", "normalizers") if part["type"] != left_out]
    normalizers = [each for part in parts for each in _normalizers(part)]
    splits: list[dict[str, Any]] = []
    for part in _parts(tokenizer, "pre_tokenizer", "pretokenizers"):
        if part["type"] == "Metaspace":
            if splits:
                raise _Unknown
            normalizers += _marked_spaces(part)
            splits += [_split(f"{_SPACE}[^{_SPACE}]*|[^{_SPACE}]+")] if part.get("split", True) else []
        else:
            splits.append(_split_of(part))
    decoders = [each for part in _parts(tokenizer, "decoder", "decoders") for each in _decoders(part)]
    changed = {
        **tokenizer,
        "normalizer": _sequence("normalizers", normalizers),
        "pre_tokenizer": _sequence("pretokenizers", splits),
        "decoder": _sequence("decoders", decoders),
        "post_processor": _post_processor(tokenizer.get("post_processor")),
    }
    return json.dumps(changed, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _parts(tokenizer: dict[str, Any], key: str, nested: str) -> Iterator[dict[str, Any]]:
    """The parts of a stage of a tokenizer, in their order."""
    stage = tokenizer.get(key)
    if stage is None:
        return
    if stage["type"] != "Sequence":
        yield stage
        return
    for each in stage[nested]:
        yield from _parts({key: each}, key, nested)


def _sequence(nested: str, parts: list[dict[str, Any]]) -> dict[str, Any] | None:
    """A stage with these parts; None without any: ExecuTorch's tokenizer refuses an empty sequence."""
    return {"type": "Sequence", nested: parts} if parts else None


def _normalizers(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if part["type"] != "Strip":
        yield part
        return
    for side, pattern in (("strip_left", rf"^[{_BLANK}]+"), ("strip_right", rf"[{_BLANK}]+$")):
        if part[side]:
            yield _replaced({"Regex": pattern}, "")


def _marked_spaces(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Normalizers for `Metaspace`: spaces become marks, and a text without one at its beginning gets one."""
    mark = part["replacement"]
    yield _replaced({"String": " "}, mark)
    if part.get("prepend_scheme", "always") != "never":
        yield {"type": "Prepend", "prepend": mark}
        yield _replaced({"Regex": f"^{mark}{mark}"}, mark)


def _decoders(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Decoders of single tokens. The space at the beginning of a text stays, since a token does not know its place."""
    if part["type"] == "Metaspace":
        yield _replaced({"String": part["replacement"]}, " ")
    elif part["type"] == "BPEDecoder":
        yield _replaced({"String": part["suffix"]}, " ")
    elif part["type"] != "Strip" or part["stop"]:
        yield part


def _post_processor(part: dict[str, Any] | None) -> dict[str, Any] | None:
    """`BertProcessing` and `RobertaProcessing` as templates."""
    if part is None or part["type"] not in ("BertProcessing", "RobertaProcessing"):
        return part
    begins, ends = part["cls"], part["sep"]
    template = [{"SpecialToken": {"id": begins[0], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    template.append({"SpecialToken": {"id": ends[0], "type_id": 0}})
    marks = {word: {"id": word, "ids": [token], "tokens": [word]} for word, token in (begins, ends)}
    return {"type": "TemplateProcessing", "single": template, "pair": template, "special_tokens": marks}


def _replaced(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _split_of(part: dict[str, Any]) -> dict[str, Any]:
    """A pre-tokenizer as one that ExecuTorch's tokenizer knows."""
    kind = part["type"]
    if kind in ("ByteLevel", "Digits"):
        return part
    if kind == "Split":
        return _whole(part)
    pattern = _OF_MARKS.get(part.get("behavior", "Isolated")) if kind == "Punctuation" else _SPLITS.get(kind)
    if pattern is None:
        raise _Unknown
    return _split(pattern)


def _whole(part: dict[str, Any]) -> dict[str, Any]:
    """A split that also has the text between its matches. ExecuTorch's drops it, whatever the split is told to do with
    the matches of a regular expression; it does what it is told with those of a literal."""
    pattern = part["pattern"].get("Regex")
    if pattern is not None and _OTHERWISE.search(pattern):
        raise _Unknown
    does = part["behavior"], bool(part.get("invert"))
    if pattern is None and does in (("Isolated", False), ("Removed", False), ("MergedWithPrevious", False)):
        return part
    if pattern is not None and does == ("Isolated", False):
        return _split(rf"(?:{pattern})|(?:(?!{pattern})[\s\S])+")
    if pattern is not None and does == ("Removed", True):
        return _split(rf"(?=[\s\S])(?:{pattern})")  # what looks ahead has all characters for `\s` and `\d`
    raise _Unknown


def _as_sentencepiece(tokenizer: dict[str, Any]) -> Iterator[Form]:
    """Models of SentencePiece: with and without a space before a text, and with all spaces or single ones."""
    model, added = tokenizer["model"], tokenizer.get("added_tokens") or []
    table = _table(tokenizer)
    ends = _ends(tokenizer.get("post_processor"))
    words = [(str(word), float(score)) for word, score in model["vocab"]]
    marks = {token["id"]: token["content"] for token in added}
    for token in sorted(marks):
        if token > len(words):
            raise _Unknown  # a gap has no piece
        words[token : token + 1] = [(marks[token], 0.0)]
    kinds = {token: sentencepiece_model.CONTROL if token in ends else sentencepiece_model.WORD for token in marks}
    if model.get("byte_fallback"):
        of_bytes = {f"<0x{value:02X}>" for value in range(256)}
        kinds |= {token: sentencepiece_model.BYTE for token, (word, _) in enumerate(words) if word in of_bytes}
    unknown = model.get("unk_id")
    if not isinstance(unknown, int) or not 0 <= unknown < len(words):
        raise _Unknown  # a model of SentencePiece must have such a piece
    kinds[unknown] = sentencepiece_model.UNKNOWN
    apart = frozenset([*ends, unknown])
    of_kinds = [
        (word, score, kinds.get(token, sentencepiece_model.NORMAL)) for token, (word, score) in enumerate(words)
    ]
    for begins, single in itertools.product((True, False), (True, False)):
        written = sentencepiece_model.write(of_kinds, ends, table, begins_with_space=begins, single_spaces=single)
        yield Form(".model", written, apart, plain=True)


def _table(tokenizer: dict[str, Any]) -> bytes:
    """How characters are normalized, as SentencePiece compiles it; empty for none. A model of SentencePiece has nothing
    else but what it does with spaces."""
    table = b""
    for at, part in enumerate(_parts(tokenizer, "normalizer", "normalizers")):
        if part["type"] == "Precompiled" and at == 0:
            table = base64.b64decode(part["precompiled_charsmap"])
        elif part["type"] != "Strip" and part not in _OF_SPACES:
            raise _Unknown
    for part in _parts(tokenizer, "pre_tokenizer", "pretokenizers"):
        if part["type"] != "WhitespaceSplit" and (part["type"], part.get("replacement")) != ("Metaspace", _SPACE):
            raise _Unknown
    return table


def _ends(part: Any) -> list[int]:
    """The tokens that a post-processor adds around a text: the first and the last one."""
    if not isinstance(part, dict):
        return []
    if part["type"] == "Sequence":
        return [token for each in part["processors"] for token in _ends(each)]
    if part["type"] in ("BertProcessing", "RobertaProcessing"):
        return [part["cls"][1], part["sep"][1]]
    if part["type"] != "TemplateProcessing":
        return []
    names = [each["SpecialToken"]["id"] for each in part["single"] if "SpecialToken" in each]
    return [token for name in names for token in part["special_tokens"][name]["ids"]]
