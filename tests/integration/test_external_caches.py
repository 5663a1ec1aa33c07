"""Decoders whose caller holds the cache: keys, values and states are inputs and outputs of each method."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from etbuild.errors import BuildError, InputError
from etbuild.key.declared import Inputs
from etbuild.plan.parts import ModuleSource
from etkit.running.generation.caches import HeldCache, mask
from etkit.running.generation.decoder import Decoder
from etplugins.runtime import program_files
from etplugins.runtime.session import Session
from etplugins.transformers.parts import ConfigFile, DecoderCache, HuggingFace
from tests.helpers import commands
from tests.helpers.language_models import CONFIGS, SHAPE, VOCABULARY, model, project
from tests.helpers.once import made_once
from tests.helpers.random_tokens import tokens

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of transformers

SLOTS, CALLS = 64, [0, 7, 8, 9, 20, 23]
CACHE = {"max_length": SLOTS, "max_seq_length": 8, "kind": "external"}
GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY}
OTHERS = {"llama": {**SHAPE, "model_type": "llama"}, "phi3": {**SHAPE, "model_type": "phi3"}, "gpt2": GPT2}


SETTINGS = HuggingFace(
    model_class="AutoModelForCausalLM",
    config=ConfigFile(file="config.json", set={}),
    task="text-generation",
    cache=DecoderCache(max_length=SLOTS, max_seq_length=8, kind="external"),
)


def with_cache(made: Any, directory: Path) -> Any:
    """The same model, which takes its cache."""
    from etplugins.transformers import huggingface

    made.config.save_pretrained(directory)
    context: Any = SimpleNamespace(inputs=Inputs(roots=[directory]))
    cached = huggingface.create(ModuleSource(huggingface=SETTINGS), context).eval()
    cached.load_state_dict(made.state_dict())
    return cached


@pytest.mark.parametrize(
    "name",
    [
        *("gemma", "mistral", "opt", "gpt_oss", "llama4", "deepseek_v2", "gemma3n", "qwen3_next", "mamba", "falcon_h1"),
        "roberta",
        *OTHERS,
    ],
)
def test_calls_give_the_scores_of_transformers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows, chunks, positions in a table, compressed keys, keys of other layers, and states."""
    monkeypatch.setitem(CONFIGS, name, {**CONFIGS, **OTHERS}[name])
    made = model(name)
    cached = with_cache(made, tmp_path)
    ids = tokens(CALLS[-1], vocab_size=VOCABULARY, seed=1).clamp(min=2)  # no padding
    spec, config = cached.etbuild_external, cached.config.get_text_config(decoder=True)
    window, chunk = (getattr(config, key, None) for key in ("sliding_window", "attention_chunk_size"))
    held, found = dict(zip(spec.names, spec.example(1), strict=True)), []
    with torch.no_grad():
        expected = made(input_ids=ids, use_cache=False).logits
        for start, end in itertools.pairwise(CALLS):
            at = torch.arange(start, end)
            masks = [
                mask(at, SLOTS, torch.float32, *((window, chunk) if name.startswith("sliding") else ()))
                for name in spec.masks
            ]
            others = [*masks, *(held[name] for name in spec.held)]
            scores, *new = cached.forward(ids[:, start:end], at[None], others)
            found.append(scores)
            for key, part in zip(spec.held, new, strict=True):
                if key.startswith(("key_", "value_")):
                    held[key] = held[key].index_copy(2, at, part)
                else:
                    held[key] = part
    largest = 1e-3 * float(expected.abs().max())
    torch.testing.assert_close(torch.cat(found, dim=1), expected, rtol=1e-3, atol=largest)


@pytest.mark.parametrize("name", ["falcon", "mpt", "gpt_neo", "gptj", "inkling"])
def test_an_attention_that_reads_the_places_of_keys_is_an_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Biases and masks of these models would take the slot of a key for its position. GPT-J has an attention of its
    own, of which nothing is known."""
    monkeypatch.setitem(CONFIGS, "gptj", {**GPT2, "model_type": "gptj", "rotary_dim": 8})
    monkeypatch.setitem(CONFIGS, "inkling", {**CONFIGS["inkling"], "layer_types": ["hybrid"] * 2})
    with pytest.raises(BuildError, match="the cache of this model cannot be an input of its methods"):
        with_cache(model(name), tmp_path)


def test_longrope_beyond_its_short_texts_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the whole model, or for one kind of its layers."""
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    config = {**SHAPE, "model_type": "phi3", "original_max_position_embeddings": SLOTS // 2, "rope_scaling": rope}
    monkeypatch.setitem(CONFIGS, "long", config)
    long = {**rope, "rope_theta": 1e4, "original_max_position_embeddings": SLOTS // 2}
    long |= {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    kinds = {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}, "full_attention": long}
    monkeypatch.setitem(CONFIGS, "long in some layers", {**CONFIGS["gemma"], "rope_parameters": kinds})
    for name in ("long", "long in some layers"):
        with pytest.raises(InputError, match=f"with `longrope`, a text of more than {SLOTS // 2} tokens changes"):
            with_cache(model(name), tmp_path)


def test_states_cannot_verify_drafts(tmp_path: Path) -> None:
    from etplugins.transformers import huggingface

    cached = with_cache(model("mamba"), tmp_path)
    methods = {"forward": SimpleNamespace(entry="forward"), "check": SimpleNamespace(entry="verify")}
    plan: Any = SimpleNamespace(model=ModuleSource(huggingface=SETTINGS), methods=methods, runner=None)
    with pytest.raises(InputError, match=r"methods\.check: layers with states cannot go back"):
        huggingface.constants(plan, cached, Inputs(roots=[tmp_path]))


@pytest.fixture(scope="module")
def built(shared_directory: Path) -> Path:
    """Gemma with calls of one token and of eight."""

    def make(partial: Path) -> None:
        path = project(partial, "gemma", CACHE, methods={"forward": {}, "decode": {}, "verify": {}})
        content = json.loads(path.read_text())
        del content["runner"]
        path.write_text(json.dumps(content))
        commands.build(path, partial / "out", "--cache-dir", shared_directory / "cache-of-external")

    return made_once(shared_directory / "external", make)


def wanted(ids: torch.Tensor, count: int) -> list[int]:
    """The tokens that transformers writes after a text."""
    seen = torch.ones_like(ids)  # otherwise transformers hides the tokens that happen to be those of padding
    made = model("gemma").generate(ids, attention_mask=seen, max_new_tokens=count, do_sample=False, eos_token_id=None)
    text: list[int] = made[0, ids.shape[1] :].tolist()
    assert len({*text}) > 5  # otherwise a wrong cache could pass
    return text


def test_a_program_holds_nothing_and_says_the_names_of_its_inputs(built: Path) -> None:
    report, index = (json.loads((built / f"out/net.{name}.json").read_text()) for name in ("report", "index"))
    assert report["bytes"]["mutable"] == []
    assert report["sharing"]["duplicate_bytes"] == 0
    constants = report["constant_methods"]
    assert (constants["get_eos_ids"], constants["get_max_context_len"], constants["get_sliding_window"]) == (
        [1],
        SLOTS,
        8,
    )
    held = [f"{kind}_cache_{layer}" for layer in range(2) for kind in ("key", "value")]
    names = ["input_ids", "position_ids", "attention_mask", "sliding_attention_mask", *held]
    assert json.loads(constants["get_input_names"]) == names
    assert json.loads(constants["get_output_names"]) == ["scores", *held]
    assert index["interface"] == report["interface"]
    for method, seq, rows in [("forward", 8, [1]), ("verify", 8, [1, 8]), ("decode", 1, [1])]:
        inputs, outputs = (report["methods"][method][side] for side in ("inputs", "outputs"))
        masks, caches = [[1, 1, seq, SLOTS + seq]] * 2, [[1, 2, SLOTS, 16]] * 4
        assert [each["shape"] for each in inputs] == [[1, seq], [1, seq], *masks, *caches]
        assert [each["shape"] for each in outputs] == [[*rows, VOCABULARY], *[[1, 2, seq, 16]] * 4]
        described = index["interface"][method]
        assert [each["name"] for each in described["inputs"]] == names
        assert [each["name"] for each in described["outputs"]] == ["scores", *held]
        assert not any(each["dynamic"] for each in (*inputs, *outputs))


def test_a_loop_writes_the_text_of_transformers(built: Path, tmp_path: Path) -> None:
    """The prompt takes calls of eight tokens and of one. The second text shares nothing with the first."""
    decoder = Decoder(program_files.read(built / "out/net.pte"), tmp_path)
    for seed in (3, 4):
        ids = tokens(21, vocab_size=VOCABULARY, seed=seed)
        assert list(decoder.written(ids[0].tolist(), 30)) == wanted(ids, 30)


def test_drafts_that_are_verified_give_the_same_text_in_fewer_calls(built: Path, tmp_path: Path) -> None:
    """A draft repeats what followed the last two tokens before. Slots of refused tokens are written again."""
    files = program_files.read(built / "out/net.pte")
    ids = tokens(16, vocab_size=VOCABULARY, seed=3)
    cache, text, count, calls = HeldCache(files, Session(files, tmp_path)), ids[0].tolist(), 40, 0
    for first in (0, 8):
        scores = cache.scores(text[first : first + 8], first)
    text.append(int(scores.argmax()))
    refused = 0
    while len(text) < 16 + count:
        pair = text[-2:]
        match = max((at for at in range(len(text) - 2) if text[at : at + 2] == pair), default=None)
        draft = ([] if match is None else text[match + 2 :][:7]) + [0] * 7
        choices = cache.call("verify", [text[-1], *draft[:7]], len(text) - 1)[0].argmax(-1).tolist()
        kept = next((place for place in range(7) if draft[place] != choices[place]), 7)
        text += choices[: kept + 1]
        calls, refused = calls + 1, refused + 7 - kept
    assert text[16:][:count] == wanted(ids, count)
    assert calls < count - 5
    assert refused > 0


def test_generate_runs_the_program(built: Path, shared_directory: Path) -> None:
    from tests.helpers.language_models import tokenizer

    ids = tokenizer().encode("hello World and more text").ids
    expected = tokenizer().decode(wanted(torch.tensor([ids]), 12), skip_special_tokens=False)
    ran = commands.etbuild(
        *("generate", built / "model.yaml", "hello World and more text", "--tokens", "12"),
        *("-o", built / "out", "--cache-dir", shared_directory / "cache-of-external"),
    )
    assert ran.stdout.strip() == expected.strip()


@pytest.mark.long
@pytest.mark.parametrize(("kind", "near"), [("static", 1e-3), ("custom", 1e-3), ("ring", 1e-3), ("quantized", 0.2)])
def test_methods_that_share_a_cache_verify_drafts_too(kind: str, near: float, tmp_path: Path) -> None:
    """A refused draft lies behind the text: the next call hides and replaces it. In a ring, it is in slots of tokens
    that no window holds any more, also if the next call is shorter. With refused drafts, the scores are those of a
    text without them."""
    methods: dict[str, Any] = {"forward": {}, "verify": {}}
    path = project(tmp_path, "gemma", {**CACHE, "kind": kind}, methods=methods, share_mutable_buffers=True)
    content = json.loads(path.read_text())
    del content["runner"]
    path.write_text(json.dumps(content))
    commands.build(path, tmp_path / "out")
    session = Session(program_files.read(tmp_path / "out/net.pte"), tmp_path)
    ids = tokens(40, vocab_size=VOCABULARY, seed=1)
    with torch.no_grad():
        expected = model("gemma")(input_ids=ids).logits

    def called(method: str, start: int, right: int, refused: int = 0) -> torch.Tensor:
        call = torch.cat([ids[:, start : start + right], torch.full((1, refused), 5)], dim=1)
        [rows] = session.call(method, [call, torch.tensor([start])])
        wanted = expected[:, start + right - 1] if method == "forward" else expected[:, start : start + right]
        found: torch.Tensor = rows if method == "forward" else rows[:, :right]
        torch.testing.assert_close(found, wanted, rtol=near, atol=near * float(expected.abs().max()))
        return found

    calls = [("verify", 8, 3, 5), ("verify", 11, 8, 0), ("verify", 19, 1, 7), ("forward", 20, 1, 0)]
    calls += [("verify", 21, 2, 6), ("forward", 23, 1, 0), ("verify", 24, 8, 0)]
    called("forward", 0, 8)
    found = [called(*call) for call in calls]
    called("forward", 0, 8)  # a new text, without refused drafts
    for (method, start, right, _), with_refused in zip(calls, found, strict=True):
        torch.testing.assert_close(called(method, start, right), with_refused, rtol=1e-4, atol=1e-4)
