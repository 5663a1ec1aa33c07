"""The build says where ExecuTorch's tokenizer writes other text than it should, and `generate` writes the right one."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from etplugins.tokenizer import conformance, other_forms
from etplugins.tokenizer.conformance import difference
from etplugins.tokenizer.runner_tokenizer import of_runner
from tests.helpers import commands
from tests.helpers.language_models import CACHES, VOCABULARY, model, project
from tests.helpers.snippets import ROOT
from tests.helpers.tokenizer_kinds import BYTES, KINDS, byte_fallback, table

tk = pytest.importorskip("tokenizers")
_QUICK = ("llama-2", "t5", "qwen", "llama-3", "bert")


def sentencepiece(words: list[str]) -> Any:
    """As Llama 2 and Mistral have it, without merges."""
    vocabulary = {word: token for token, word in enumerate(["<unk>", "<s>", "</s>", *words])}
    made = byte_fallback()
    made.model = tk.models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    return made


@pytest.mark.parametrize(
    "name", [each if each in _QUICK else pytest.param(each, marks=pytest.mark.long) for each in KINDS]
)
def test_each_tokenizer_is_read_or_has_another_form_or_is_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    kind, file = KINDS[name], tmp_path / "tokenizer.json"
    kind.make().save(str(file))
    found = difference(str(file))
    if found is None or found.content is not None:
        assert (kind.result, kind.needs) == (("read", "") if found is None else (found.suffix, found.needs))
    else:
        assert found.what.startswith(kind.result)
        assert kind.result not in ("", "read", ".json", ".model")


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.result.startswith(".")])
def test_the_other_form_gives_the_tokens_and_the_text(name: str, tmp_path: Path) -> None:
    """A text that the comparison of the build does not have."""
    made = KINDS[name].make()
    made.save(str(tmp_path / "tokenizer.json"))
    found = difference(str(tmp_path / "tokenizer.json"))
    assert found is not None
    assert found.content is not None
    (tmp_path / f"other{found.suffix}").write_bytes(found.content)
    runner, text = of_runner(str(tmp_path / f"other{found.suffix}")), "is the day long, and the day"
    ids = made.encode(text, add_special_tokens=False).ids
    assert list(runner.encode(text, 0, 0)) == ids
    assert "".join(map(runner.decode, ids)).lstrip() == made.decode(ids).lstrip()


_TEXT = "the day.. and, a\u00a0day--\u3000日本語、中文! ① naïve_2 (so) x²\u2028e\u0301 Ⓐb"


@pytest.mark.parametrize(
    "split",
    [
        *(tk.pre_tokenizers.Punctuation(behavior) for behavior in ("isolated", "contiguous")),
        *(tk.pre_tokenizers.Punctuation(f"merged_with_{side}") for side in ("previous", "next")),
        tk.pre_tokenizers.Punctuation("removed"),
        tk.pre_tokenizers.BertPreTokenizer(),
        tk.pre_tokenizers.Whitespace(),
        tk.pre_tokenizers.WhitespaceSplit(),
        *(
            tk.pre_tokenizers.Split(pattern, behavior, invert)
            for pattern in ("a", tk.Regex(r"\w+"), tk.Regex(r"\s|\p{L}+"))
            for behavior in ("removed", "isolated", "contiguous", "merged_with_previous", "merged_with_next")
            for invert in (False, True)
        ),
    ],
    ids=str,
)
def test_a_form_splits_texts_exactly(split: Any) -> None:
    """The words are such that each wrong split gives other tokens, which the texts of the comparison do not show."""
    by_bytes = tk.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made = tk.Tokenizer(tk.models.BPE())
    made.pre_tokenizer, made.decoder = by_bytes, tk.decoders.ByteLevel()
    alphabet = tk.pre_tokenizers.ByteLevel.alphabet()
    texts = [_TEXT[start:end] for start in range(len(_TEXT)) for end in range(start + 2, start + 9)]
    made.train_from_iterator(
        texts,
        tk.trainers.BpeTrainer(vocab_size=1500, min_frequency=1, initial_alphabet=alphabet, show_progress=False),
    )
    made.pre_tokenizer = tk.pre_tokenizers.Sequence([split, by_bytes])
    assert _wrong(made) == []


def _wrong(made: Any) -> list[str]:
    """The parts of the text for which a form gives other tokens."""
    texts = [_TEXT[start:] for start in range(len(_TEXT))]
    found = []
    for form in other_forms.of_json(made.to_str().encode()):
        with tempfile.NamedTemporaryFile(suffix=form.suffix) as file:
            file.write(form.content)
            file.flush()
            runner = of_runner(file.name)
            found += [text for text in texts if list(runner.encode(text, 0, 0)) != made.encode(text).ids]
    return found


def test_runs_of_marks_are_one_word_of_falcon(tmp_path: Path) -> None:
    content = json.loads(KINDS["falcon"].make().to_str())
    content["model"]["vocab"][".."] = len(content["model"]["vocab"])
    content["model"]["merges"].append([".", "."])
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    found = difference(str(tmp_path / "tokenizer.json"))
    assert found is not None
    assert (found.suffix, found.needs) == (".json", "")
    (tmp_path / "other.json").write_bytes(found.content or b"")
    right = conformance.reference(str(tmp_path / "tokenizer.json"))
    expected = right.encode("the day.. and", add_special_tokens=False).ids
    assert content["model"]["vocab"][".."] in expected
    assert list(of_runner(str(tmp_path / "other.json")).encode("the day.. and", 0, 0)) == expected


@pytest.mark.parametrize("found", ["long", "``", " "])
@pytest.mark.parametrize("first", [True, False])
def test_a_model_of_sentencepiece_replaces_no_words(found: str, first: bool, tmp_path: Path) -> None:
    content = json.loads(KINDS["t5"].make().to_str())
    parts = content["normalizer"]["normalizers"]
    part = {"type": "Replace", "pattern": {"String": found}, "content": "the"}
    content["normalizer"]["normalizers"] = [part, *parts] if first else [*parts, part]
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(content))
    assert conformance.reference(str(file)).encode(f"a {found} day").ids
    assert [*other_forms.of_json(file.read_bytes())] == []
    difference_ = difference(str(file))
    assert difference_ is not None
    assert difference_.content is None


def test_the_comparison_has_texts_with_each_literal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A form that drops a replacement is not used, even if nothing else tells."""
    content = json.loads(KINDS["llama-2"].make().to_str())
    part = {"type": "Replace", "pattern": {"String": "qu"}, "content": "th"}
    content["normalizer"]["normalizers"].insert(0, part)
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(content))
    assert (difference(str(file)) or conformance.Difference("")).content is not None
    all_of = other_forms._normalizers
    monkeypatch.setattr(other_forms, "_normalizers", lambda each: all_of(each) if each != part else iter(()))
    assert (difference(str(file)) or conformance.Difference("", content=b"")).content is None


@pytest.mark.parametrize("change", [{"unk_id": None}, {"vocab": [["<unk>", 0.0], ["a", -1e39], ["▁", -1.0]]}])
def test_a_model_that_sentencepiece_cannot_have_has_no_other_form(change: dict[str, Any], tmp_path: Path) -> None:
    content = json.loads(KINDS["t5"].make().to_str())
    content["model"].update(change)
    content["added_tokens"], content["post_processor"] = [], None
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(content))
    assert conformance.reference(str(file)).get_vocab_size()
    found = difference(str(file))
    assert found is not None
    assert (found.what, found.content) == ("cannot read it: its model is Unigram", None)


@pytest.mark.parametrize(
    "flags",
    [
        {"lstrip": True, "special": True},
        {"rstrip": True, "special": True},
        {"lstrip": True, "rstrip": True},
        {"single_word": True},
    ],
    ids=str,
)
def test_the_flags_of_added_tokens_are_compared(flags: dict[str, bool], tmp_path: Path) -> None:
    """ExecuTorch's tokenizer knows none of them. Without special tokens in the texts, the rest is right."""
    made = KINDS["gpt-2"].make()
    made.add_tokens([tk.AddedToken("<extra>", **flags)])
    file = tmp_path / "tokenizer.json"
    made.save(str(file))
    found = difference(str(file))
    assert found is not None
    assert found.what.startswith("makes [")
    assert bool(found.content) == bool(found.needs) == ("special" in flags)


def test_the_table_of_the_page_is_that_of_the_list() -> None:
    assert table() in (ROOT / "docs/tokenizers.md").read_text("utf-8")


def test_a_wrong_token_that_no_text_has_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformance, "_TEXTS", ("the",))
    monkeypatch.setattr(conformance, "_literals", lambda right: iter(()))
    monkeypatch.setattr(conformance, "_with_added", lambda right, plain: iter(()))
    made = sentencepiece([*BYTES, *"▁adehnty", "▁the"])
    made.normalizer = tk.normalizers.Replace(" ", "▁")
    file = tmp_path / "tokenizer.json"
    made.save(str(file))
    found = difference(str(file))
    assert found is not None
    assert found.what == "writes `` for the token `<0x20>`, which is ` `"


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
    made.model = tk.models.BPE(made.get_vocab(), [], byte_fallback=True)  # texts of other letters are not compared
    assert made.get_vocab_size() <= VOCABULARY
    path = project(tmp_path, "qwen", CACHES["custom"])
    made.save(str(tmp_path / "tokenizer.json"))
    done = commands.etbuild("generate", path, "the day", "--tokens", 24, "-o", tmp_path / "out", "--no-cache")
    assert done.returncode == 0, done.stderr
    place = "executorch_tokenizer.json"
    assert f"note: an application with ExecuTorch's tokenizer reads `net.tokenizer/{place}`: of `tok" in done.stderr
    [other] = (tmp_path / "out").glob(f"*.tokenizer/{place}")
    written = "".join(map(of_runner(str(other)).decode, made.encode("the day and the day").ids))
    assert written == " the day and the day"
    ids = made.encode("the day").ids
    found = model("qwen").generate(torch.tensor([ids]), max_new_tokens=24, do_sample=False, eos_token_id=1)
    text = made.decode(found[0].tolist(), skip_special_tokens=False).removeprefix("the day")
    assert done.stdout.rstrip("\n") == text.rstrip("\ufffd")  # the last character is not complete
