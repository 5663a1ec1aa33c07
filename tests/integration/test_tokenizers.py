"""The build says where ExecuTorch's tokenizer writes other text than it should, and `generate` writes the right one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from etplugins.tokenizer import conformance
from etplugins.tokenizer.conformance import difference
from tests.helpers import commands
from tests.helpers.language_models import CACHES, VOCABULARY, model, project

tk = pytest.importorskip("tokenizers")
CORPUS = ["the day and the day is long, café naïve, Привет мир 日本語 🙂 int i = 0; don't 12345"] * 20
BYTES = [f"<0x{value:02X}>" for value in range(256)]
GPT_4 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+"


def byte_level(split: str | None = None) -> Any:
    """As GPT-2, Qwen and Llama 3 have it."""
    made = tk.Tokenizer(tk.models.BPE())
    by_bytes = tk.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    parts = [tk.pre_tokenizers.Split(tk.Regex(split), "isolated"), by_bytes] if split else [by_bytes]
    made.pre_tokenizer = tk.pre_tokenizers.Sequence(parts)
    made.decoder = tk.decoders.ByteLevel()
    alphabet = tk.pre_tokenizers.ByteLevel.alphabet()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = tk.trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
    made.train_from_iterator(CORPUS, trainer)
    made.post_processor = tk.processors.TemplateProcessing(single="<|endoftext|> $A", special_tokens=[(special[0], 0)])
    return made


def sentencepiece(words: list[str]) -> Any:
    """As Llama 2 and Mistral have it."""
    vocabulary = {word: token for token, word in enumerate(["<unk>", "<s>", "</s>", *words])}
    made = tk.Tokenizer(tk.models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    normal, decoders = tk.normalizers, tk.decoders
    made.normalizer = normal.Sequence([normal.Prepend("▁"), normal.Replace(" ", "▁")])
    bytes_and_spaces = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(bytes_and_spaces)
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    return made


def unigram() -> Any:
    """As T5 and XLM-R have it."""
    made = tk.Tokenizer(tk.models.Unigram())
    made.pre_tokenizer, made.decoder = tk.pre_tokenizers.Metaspace(), tk.decoders.Metaspace()
    made.train_from_iterator(
        CORPUS, tk.trainers.UnigramTrainer(vocab_size=120, unk_token="<unk>", special_tokens=["<unk>"])
    )
    return made


def word_piece() -> Any:
    """As BERT has it."""
    made = tk.Tokenizer(tk.models.WordPiece(unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = tk.normalizers.BertNormalizer(), tk.pre_tokenizers.BertPreTokenizer()
    made.decoder = tk.decoders.WordPiece()
    made.train_from_iterator(CORPUS, tk.trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[UNK]"]))
    return made


KINDS: dict[str, tuple[Callable[[], Any], str | None]] = {
    "bytes": (byte_level, None),
    "bytes-llama-3": (lambda: byte_level(GPT_4), None),
    "sentencepiece": (
        lambda: sentencepiece([*BYTES, *"▁adehnty", "▁the"]),
        "writes `thedayandtheday` for the tokens of `the day and the day`",
    ),
    "unigram": (unigram, "cannot read it: "),
    "word-piece": (word_piece, "cannot read it: Unsupported Normalizer type: BertNormalizer"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_kinds_that_the_runner_reads_wrongly_are_known(kind: str, tmp_path: Path) -> None:
    make, expected = KINDS[kind]
    file = tmp_path / "tokenizer.json"
    make().save(str(file))
    found = difference(str(file))
    assert found == expected if expected is None else (found or "").startswith(expected)


def test_a_wrong_token_that_no_text_has_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformance, "_TEXTS", ("the",))
    made = sentencepiece([*BYTES, *"▁adehnty", "▁the"])
    made.normalizer = tk.normalizers.Replace(" ", "▁")
    file = tmp_path / "tokenizer.json"
    made.save(str(file))
    assert difference(str(file)) == "writes `` for the token `<0x20>`, which is ` `"


def test_a_text_that_the_tokenizer_refuses_is_not_compared(tmp_path: Path) -> None:
    made = tk.Tokenizer(tk.models.BPE({"b": 0, "c": 1}, [], unk_token="<unk>"))  # the vocabulary lacks the token
    made.pre_tokenizer, made.decoder = tk.pre_tokenizers.ByteLevel(add_prefix_space=False), tk.decoders.ByteLevel()
    with pytest.raises(Exception, match="not found in the vocabulary"):
        made.encode("a")
    made.save(str(tmp_path / "tokenizer.json"))
    assert difference(str(tmp_path / "tokenizer.json")) is None


def test_what_is_no_tokenizer_of_the_library_has_no_difference(tmp_path: Path) -> None:
    for name, text in {"tokenizer.json": "{}", "tokenizer.model": "x"}.items():
        (tmp_path / name).write_text(text)
        assert difference(str(tmp_path / name)) is None


@pytest.mark.long
def test_generate_writes_the_text_of_the_tokenizer_and_the_build_notes_that_the_runner_does_not(tmp_path: Path) -> None:
    words = ["▁", "▁the", "▁day", "▁and", *"dehtayn", *(f"▁{letter}" for letter in "bcfgijklm"), *BYTES[0xA0:0xC4]]
    made = sentencepiece(words)
    assert made.get_vocab_size() <= VOCABULARY
    path = project(tmp_path, "qwen", CACHES["custom"])
    made.save(str(tmp_path / "tokenizer.json"))
    done = commands.etbuild("generate", path, "the day", "--tokens", 24, "-o", tmp_path / "out", "--no-cache")
    assert done.returncode == 0, done.stderr
    assert "note: an application with ExecuTorch's tokenizer writes `thedayandtheday`" in done.stderr
    ids = made.encode("the day").ids
    found = model("qwen").generate(torch.tensor([ids]), max_new_tokens=24, do_sample=False, eos_token_id=1)
    text = made.decode(found[0].tolist(), skip_special_tokens=False).removeprefix("the day")
    assert done.stdout.rstrip("\n") == text.rstrip("\ufffd")  # the last character is not complete
