"""Tokenizers of the kinds that models have, made here, and what ExecuTorch's tokenizers do with each."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

tk = pytest.importorskip("tokenizers")
normal, before, after, decoders = tk.normalizers, tk.pre_tokenizers, tk.processors, tk.decoders

CORPUS = ["the day and the day is long, café naïve, Привет мир 日本語 🙂 int i = 0; don't 12345"] * 20
BYTES = [f"<0x{value:02X}>" for value in range(256)]
GPT_4 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+"
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT_4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CHAT = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def _split(pattern: str) -> Any:
    return before.Split(tk.Regex(pattern), "isolated")


def byte_level(*parts: Any, prefix: bool = False, regex: bool = True, special: list[str] | None = None) -> Any:
    """BPE on bytes, as GPT-2 has it. `parts` split a text first."""
    made = tk.Tokenizer(tk.models.BPE())
    by_bytes = before.ByteLevel(add_prefix_space=prefix, use_regex=regex)
    made.pre_tokenizer = before.Sequence([*parts, by_bytes]) if parts else by_bytes
    made.decoder = decoders.ByteLevel()
    trainer = tk.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special or _CHAT,
        initial_alphabet=before.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(CORPUS, trainer)
    first = (special or _CHAT)[0]
    made.post_processor = after.TemplateProcessing(single=f"{first} $A", special_tokens=[(first, 0)])
    return made


def _with(made: Any, **parts: Any) -> Any:
    for name, part in parts.items():
        setattr(made, name, part)
    return made


def _letters(words: list[str]) -> list[str]:
    """The words that lead to a word by merging two of them, and the word."""
    return [word[:length] for word in words for length in range(2, len(word) + 1)]


@functools.cache
def _learned() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The vocabulary and the merges of SentencePiece's BPE, with a piece for each byte."""
    grown = [*_letters(["▁the", "▁day", "▁and", "▁is", "▁long"])]
    letters = [*dict.fromkeys("▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,;:'\"()")]
    vocabulary = [*dict.fromkeys(["<unk>", "<s>", "</s>", *BYTES, *letters, *grown])]
    merges = [(word[:-1], word[-1]) for word in dict.fromkeys(grown)]
    return {word: token for token, word in enumerate(vocabulary)}, merges


def byte_fallback(*, strip: bool = True, metaspace: Any = None, fallback: bool = True) -> Any:
    """BPE with a token for each byte, as SentencePiece makes it."""
    vocabulary, merges = _learned()
    made = tk.Tokenizer(tk.models.BPE(vocabulary, merges, byte_fallback=fallback, unk_token="<unk>", fuse_unk=True))
    if metaspace is None:
        made.normalizer = normal.Sequence([normal.Prepend("▁"), normal.Replace(" ", "▁")])
    else:
        made.pre_tokenizer = metaspace
    bytes_and_spaces = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*bytes_and_spaces, *([decoders.Strip(" ", 1, 0)] if strip else [])])
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    return made


def _begins(made: Any) -> Any:
    return _with(made, post_processor=after.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)]))


def _gemma() -> Any:
    made = byte_fallback(strip=False)
    made.normalizer, made.pre_tokenizer = normal.Replace(" ", "▁"), before.Split(" ", "merged_with_previous")
    made.add_special_tokens(["<start_of_turn>", "<end_of_turn>"])
    return _begins(made)


def _phi() -> Any:
    made = byte_fallback()
    made.add_special_tokens([tk.AddedToken(f"<|{name}|>", rstrip=True, special=True) for name in ("user", "end")])
    return made


def _without_bytes() -> Any:
    made = byte_fallback(metaspace=before.Metaspace(), fallback=False)
    return _with(made, decoder=decoders.Metaspace())


def unigram(special: list[str], template: str = "$A", split: Any = None, **parts: Any) -> Any:
    """As T5 and XLM-R have it."""
    made = tk.Tokenizer(tk.models.Unigram())
    made.pre_tokenizer, made.decoder = split or before.Metaspace(), decoders.Metaspace()
    _with(made, **parts)
    trainer = tk.trainers.UnigramTrainer(
        vocab_size=160, unk_token="<unk>", special_tokens=["<unk>", *special], show_progress=False
    )
    made.train_from_iterator(CORPUS, trainer)
    ends = [(word, made.token_to_id(word)) for word in special if word in template]
    made.post_processor = after.TemplateProcessing(single=template, special_tokens=ends)
    return made


def _of_bytes(made: Any) -> Any:
    """A Unigram model with a token for each byte."""
    content = json.loads(made.to_str())
    content["model"]["vocab"] += [[word, -20.0] for word in BYTES]
    content["model"]["byte_fallback"] = True
    content["decoder"] = json.loads(byte_fallback().to_str())["decoder"]
    return tk.Tokenizer.from_str(json.dumps(content))


def trained(template: str, split: Any = None, **parts: Any) -> Any:
    """A tokenizer that the package sentencepiece has trained, as transformers converts it."""
    pieces = pytest.importorskip("sentencepiece")
    written = io.BytesIO()
    texts, limits = iter(CORPUS), {"vocab_size": 120, "hard_vocab_limit": False, "minloglevel": 2}
    pieces.SentencePieceTrainer.train(sentence_iterator=texts, model_writer=written, model_type="unigram", **limits)
    model = pieces.SentencePieceProcessor(model_proto=written.getvalue())
    vocabulary = [(model.id_to_piece(token), model.get_score(token)) for token in range(model.get_piece_size())]
    made = tk.Tokenizer(tk.models.Unigram(vocabulary, unk_id=model.unk_id()))
    spaces = [normal.Strip(left=False), normal.Replace(tk.Regex(" {2,}"), "▁")]
    made.normalizer = normal.Sequence([normal.Precompiled(_normalization(written.getvalue())), *spaces])
    made.pre_tokenizer, made.decoder = split or before.Metaspace(), decoders.Metaspace()
    _with(made, **parts)
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    ends = [(word, made.token_to_id(word)) for word in ("<s>", "</s>") if word in template]
    made.post_processor = after.TemplateProcessing(single=template, special_tokens=ends)
    return made


def _normalization(model: bytes) -> bytes:
    """The table of characters in a model of SentencePiece: field 2 of its field 3."""
    return _field(_field(model, 3), 2)


def _field(message: bytes, wanted: int) -> bytes:
    """The last field of a message with a number, whose content has a length."""
    found, at = b"", 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte, at = message[at], at + 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        tag = number()
        size = number() if tag & 7 == 2 else {1: 8, 5: 4}.get(tag & 7, 0)
        if tag & 7 == 0:
            number()
        found = message[at : at + size] if tag == wanted << 3 | 2 else found
        at += size
    return found


def word_piece(*, lower: bool = True, accents: bool | None = None, prefix: str = "##") -> Any:
    """As BERT has it."""
    made = tk.Tokenizer(tk.models.WordPiece(unk_token="[UNK]", continuing_subword_prefix=prefix))
    made.normalizer = normal.BertNormalizer(lowercase=lower, strip_accents=accents)
    made.pre_tokenizer, made.decoder = before.BertPreTokenizer(), decoders.WordPiece(prefix=prefix)
    trainer = tk.trainers.WordPieceTrainer(
        vocab_size=300,
        special_tokens=["[UNK]", "[CLS]", "[SEP]"],
        continuing_subword_prefix=prefix,
        show_progress=False,
    )
    made.train_from_iterator(CORPUS, trainer)
    made.post_processor = after.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    return made


def _roberta() -> Any:
    made = byte_level(special=["<s>", "</s>"])
    return _with(made, post_processor=after.RobertaProcessing(("</s>", 1), ("<s>", 0), trim_offsets=True))


def _ignores_merges() -> Any:
    made = byte_level(_split(GPT_4), regex=False, special=["<|begin_of_text|>", "<|eot_id|>"])
    made.model.ignore_merges = True
    return made


@dataclass(frozen=True)
class Kind:
    """A tokenizer.

    Attributes:
        of: The kind of the list.
        like: A model that has such a one.
        make: Makes it.
        result: `read` if ExecuTorch's tokenizer reads the file; the suffix of another form that it reads; or the
            beginning of the reason why it cannot be used.
        needs: What texts must be for the other form.
    """

    of: str
    like: str
    make: Callable[[], Any]
    result: str
    needs: str = ""


_PLAIN = "if texts have no special tokens, which are added by number"
_FORM = "if texts are in the normal form {} of Unicode"
_PIECES, _UNIGRAM, _BYTES = "SentencePiece BPE", "Unigram", "byte-level BPE"
_TIKTOKEN, _WORDS = "as of tiktoken", "WordPiece"
KINDS = {
    "llama-2": Kind(_PIECES, "Llama 2, TinyLlama", byte_fallback, ".json"),
    "mistral": Kind(_PIECES, "Mistral 7B", lambda: _begins(byte_fallback()), ".json"),
    "metaspace": Kind(
        _PIECES,
        "Llama 2, written by newer libraries",
        lambda: byte_fallback(metaspace=before.Metaspace(prepend_scheme="always", split=False)),
        ".json",
    ),
    "metaspace-first": Kind(
        _PIECES,
        "Mistral, written by newer libraries",
        lambda: byte_fallback(metaspace=before.Metaspace(prepend_scheme="first", split=False)),
        ".json",
        _PLAIN,
    ),
    "gemma": Kind(_PIECES, "Gemma", _gemma, "read"),
    "phi": Kind(_PIECES, "Phi-3", _phi, ".json", _PLAIN),
    "no-bytes": Kind(
        _PIECES,
        "BPE of SentencePiece without bytes",
        _without_bytes,
        "cannot read it: Unsupported PreTokenizer type: Metaspace",
    ),
    "t5": Kind(_UNIGRAM, "T5, mT5", lambda: trained("$A </s>"), ".model", _PLAIN),
    "xlm-r": Kind(
        _UNIGRAM,
        "XLM-R",
        lambda: trained("<s> $A </s>", before.Sequence([before.WhitespaceSplit(), before.Metaspace()])),
        ".model",
        _PLAIN,
    ),
    "albert": Kind(
        _UNIGRAM,
        "ALBERT",
        lambda: unigram(
            ["[CLS]", "[SEP]"], "[CLS] $A [SEP]", normalizer=normal.Sequence([normal.NFKD(), normal.Lowercase()])
        ),
        "cannot read it: its model is Unigram",
    ),
    "unigram-bytes": Kind(
        _UNIGRAM,
        "Unigram with byte fallback",
        lambda: _of_bytes(unigram(["</s>"])),
        "cannot read it: its model is Unigram",
    ),
    "unigram": Kind(
        _UNIGRAM,
        "Unigram without normalization",
        lambda: unigram(["<pad>", "</s>"]),
        "cannot read it: its model is Unigram",
    ),
    "gpt-2": Kind(_BYTES, "GPT-2", byte_level, "read"),
    "prefix": Kind(_BYTES, "GPT-NeoX with a space before a text", lambda: byte_level(prefix=True), "read"),
    "qwen": Kind(
        _BYTES,
        "Qwen2, Qwen3",
        lambda: _with(byte_level(_split(QWEN), regex=False), normalizer=normal.NFC()),
        ".json",
        _FORM.format("NFC"),
    ),
    "roberta": Kind(_BYTES, "RoBERTa, BART", _roberta, ".json"),
    "falcon": Kind(_BYTES, "Falcon", lambda: byte_level(before.Punctuation("contiguous"), before.Digits()), ".json"),
    "starcoder": Kind(_BYTES, "StarCoder", lambda: byte_level(before.Digits(individual_digits=True)), "read"),
    "compatible": Kind(
        _BYTES,
        "byte-level with NFKC",
        lambda: _with(byte_level(), normalizer=normal.NFKC()),
        ".json",
        _FORM.format("NFKC"),
    ),
    "llama-3": Kind(_TIKTOKEN, "Llama 3", _ignores_merges, "read"),
    "gpt-4o": Kind(_TIKTOKEN, "gpt-oss, Phi-4", lambda: byte_level(_split(GPT_4O), regex=False), "read"),
    "deepseek": Kind(
        _TIKTOKEN,
        "DeepSeek V3",
        lambda: byte_level(_split(r"\p{N}{1,3}"), _split("[\u4e00-\u9fa5\u3040-\u30ff]+"), _split(QWEN), regex=False),
        ".json",
    ),
    "bert": Kind(_WORDS, "BERT, uncased", word_piece, "cannot read it: Unsupported Normalizer type: BertNormalizer"),
    "bert-cased": Kind(
        _WORDS,
        "BERT, cased",
        lambda: word_piece(lower=False),
        "cannot read it: Unsupported Normalizer type: BertNormalizer",
    ),
}


def table() -> str:
    """The list in Markdown."""
    results = {"read": "reads it", ".json": "reads another form, `.json`", ".model": "reads another form, `.model`"}
    lines = ["| kind | as of | ExecuTorch's tokenizer |", "|---|---|---|"]
    for each in KINDS.values():
        result = f"{results[each.result]}{f', {each.needs}' if each.needs else ''}" if each.result in results else ""
        lines.append(f"| {each.of} | {each.like} | {result or f'refused: {each.result}'} |")
    return "\n".join(lines) + "\n"
