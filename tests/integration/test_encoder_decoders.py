"""Models with an encoder and a decoder from a manifest: ExecuTorch's runtime says what transformers says."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from etbuild.cli import main
from etplugins.transformers import empty_parameters
from tests.helpers import commands
from tests.helpers.once import made_once
from tests.helpers.random_tokens import tokens
from tests.helpers.runtime import run
from tests.integration.conftest import Build

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of transformers

VOCABULARY = 64
CONFIGS: dict[str, dict[str, Any]] = {
    "t5": {
        "model_type": "t5",
        "vocab_size": VOCABULARY,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 64,
        "num_layers": 1,
        "num_decoder_layers": 2,
        "num_heads": 4,
        "tie_word_embeddings": False,
    },
    "whisper": {
        "model_type": "whisper",
        "vocab_size": VOCABULARY,
        "d_model": 32,
        "encoder_layers": 1,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
        "num_mel_bins": 16,
        "max_source_positions": 16,
        "max_target_positions": 32,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 3,
        "suppress_tokens": None,
        "begin_suppress_tokens": None,
    },
}
PARTITIONERS: dict[str, list[str]] = {"t5": [], "whisper": ["xnnpack"]}
SEEDS = {"t5": (5, 13), "whisper": (1, 9)}
START = {"t5": 0, "whisper": 3}
HUGGINGFACE: dict[str, dict[str, Any]] = {
    "t5": {
        "task": "seq2seq",
        "max_source_length": 40,
        "cache": {"max_length": 32},
        "generation_config": {"decoder_start_token_id": 0},
    },
    "whisper": {"task": "speech-to-text", "cache": {"max_length": 32, "max_seq_length": 4}},
}


def model(name: str) -> Any:
    """A model of transformers whose scores are far from zero and from each other."""
    config = transformers.AutoConfig.for_model(**CONFIGS[name])
    auto = transformers.AutoModelForSpeechSeq2Seq if name == "whisper" else transformers.AutoModelForSeq2SeqLM
    made = auto.from_config(config, attn_implementation="eager").eval()
    numbers = torch.Generator().manual_seed(5)
    for parameter in made.parameters():
        if parameter.dim() > 1:
            parameter.data = torch.randn(parameter.shape, generator=numbers) / 2
    return made


def source(name: str, seed: int) -> torch.Tensor:
    """Tokens or features for the encoder."""
    if name == "whisper":
        return torch.randn(1, 16, 32, generator=torch.Generator().manual_seed(seed))
    return tokens(seed + 5, vocab_size=VOCABULARY, seed=seed)


def generated(name: str, inputs: torch.Tensor, count: int) -> list[int]:
    """The tokens that transformers generates, after the first one."""
    how = {
        "eos_token_id": VOCABULARY + 1,
        "decoder_start_token_id": START[name],
        "do_sample": False,
        "use_cache": False,
    }
    found: list[int] = model(name).generate(inputs, max_new_tokens=count, **how)[0].tolist()
    return found[-count:]


@pytest.fixture(scope="session")
def program(shared_directory: Path) -> Callable[[str], Path]:
    """Builds the program of a model when it is first needed, and returns its path."""

    def get(name: str) -> Path:
        def make(partial: Path) -> None:
            partial.mkdir(parents=True, exist_ok=True)
            state = {key: value.clone() for key, value in model(name).state_dict().items()}
            save_file(state, partial / "model.safetensors")
            manifest = {
                "schema": "executorch-model/v1",
                "name": "net",
                "runner": "executorch-asr/v1",
                "model": {
                    "huggingface": {"config": CONFIGS[name], **HUGGINGFACE[name]},
                    "weights": "model.safetensors",
                },
                "defaults": {"partitioners": PARTITIONERS[name]},
            }
            (partial / "model.yaml").write_text(json.dumps(manifest))
            commands.build(partial / "model.yaml", partial / "out")

        return made_once(shared_directory / f"encoder-decoder-{name}", make) / "out/net.pte"

    return get


@pytest.mark.parametrize("name", ["t5", "whisper"])
def test_the_runtime_says_what_transformers_says(name: str, program: Callable[[str], Path], tmp_path: Path) -> None:
    """Two texts one after the other, as ExecuTorch's runner does: the second one finds the cache of the first."""
    sources = [source(name, seed) for seed in SEEDS[name]]
    [encoded] = run(program(name), [[("encoder", [inputs]) for inputs in sources]], tmp_path)
    texts = [[START[name], *generated(name, inputs, 20)] for inputs in sources]
    assert all(len(set(text)) > 5 for text in texts)  # otherwise a wrong cache could pass
    calls = [
        ("text_decoder", [torch.tensor([[token]]), states, torch.tensor([position])])
        for text, (states,) in zip(texts, encoded, strict=True)
        for position, token in enumerate(text[:-1])
    ]
    [outputs] = run(program(name), [calls], tmp_path)
    assert all(scores.shape == (1, VOCABULARY) for (scores,) in outputs)
    assert [int(scores.argmax()) for (scores,) in outputs] == [token for text in texts for token in text[1:]]
    with torch.no_grad():
        expected = torch.cat(
            [
                model(name)(inputs, decoder_input_ids=torch.tensor([text[:-1]]), use_cache=False).logits[0]
                for inputs, text in zip(sources, texts, strict=True)
            ]
        )
    actual = torch.cat([scores for (scores,) in outputs])
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def test_several_tokens_in_one_call_give_the_same_scores(program: Callable[[str], Path], tmp_path: Path) -> None:
    [[[states]]] = run(program("whisper"), [[("encoder", [source("whisper", 1)])]], tmp_path)
    text = torch.tensor([[START["whisper"], *generated("whisper", source("whisper", 1), 6)]])
    cuts = [[0, 4, 7], range(8)]
    sessions = [
        [
            ("text_decoder", [text[:, start:end], states, torch.tensor([start])])
            for start, end in itertools.pairwise(places)
        ]
        for places in cuts
    ]
    together, single = run(program("whisper"), sessions, tmp_path)
    torch.testing.assert_close(together[-1][0], single[-1][0], rtol=1e-4, atol=1e-4)


def test_the_contract_of_the_runner_is_in_the_report(program: Callable[[str], Path]) -> None:
    assert json.loads(program("whisper").with_suffix(".report.json").read_text())["constant_methods"] == {
        "decoder_start_token_id": 3,
        "enable_dynamic_shape": True,
        "get_bos_id": 1,
        "get_eos_ids": [2],
        "get_max_context_len": 32,
        "get_max_seq_len": 4,
        "get_n_layers": 2,
        "get_vocab_size": VOCABULARY,
        "use_kv_cache": True,
        "use_sdpa_with_kv_cache": False,
    }
    assert json.loads(program("t5").with_suffix(".report.json").read_text())["constant_methods"] == {
        "decoder_start_token_id": 0,
        "enable_dynamic_shape": False,
        "get_eos_ids": [1],
        "get_max_context_len": 32,
        "get_max_seq_len": 32,
        "get_n_layers": 2,
        "get_vocab_size": VOCABULARY,
        "use_kv_cache": True,
        "use_sdpa_with_kv_cache": False,
    }


SMALL_T5 = {"model_type": "t5", "vocab_size": 32, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
SMALL_BART = {
    "model_type": "bart",
    "vocab_size": 32,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "max_position_embeddings": 16,
}
MOONSHINE = {
    "model_type": "moonshine",
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 16,
    "encoder_num_hidden_layers": 1,
    "decoder_num_hidden_layers": 1,
    "encoder_num_attention_heads": 2,
    "decoder_num_attention_heads": 2,
}
GEMMA_PART = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
}
T5_GEMMA = {  # the limits are those of its parts
    "model_type": "t5gemma",
    "vocab_size": 32,
    "encoder": {**GEMMA_PART, "max_position_embeddings": 16},
    "decoder": {**GEMMA_PART, "max_position_embeddings": 12},
}
LED = {
    **{key: value for key, value in SMALL_BART.items() if key != "max_position_embeddings"},
    "model_type": "led",
    "attention_window": 8,
    "max_encoder_position_embeddings": 32,
    "max_decoder_position_embeddings": 32,
}
PROPHETNET = {"model_type": "prophetnet", "hidden_size": 16, "num_encoder_attention_heads": 2, "vocab_size": 32}


@pytest.mark.parametrize(
    ("huggingface", "keys", "message"),
    [
        (
            {"task": "seq2seq", "config": SMALL_BART, "max_source_length": 17, "cache": {"max_length": 16}},
            {},
            "max_source_length 17 is more than the configuration's `max_position_embeddings` 16\n    write 16 or less",
        ),
        (
            {"task": "speech-to-text", "config": CONFIGS["whisper"], "cache": {"max_length": 33}},
            {},
            "cache.max_length 33 is more than the configuration's `max_target_positions` 32",
        ),
        (
            {
                "task": "seq2seq",
                "class": "AutoModelForSpeechSeq2Seq",
                "config": CONFIGS["whisper"],
                "max_source_length": 8,
                "cache": {"max_length": 8},
            },
            {},
            "takes `input_features`\n    write `task: speech-to-text`",
        ),
        (
            {
                "task": "seq2seq",
                "class": "AutoModelForCausalLM",
                "config": {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 32},
                "max_source_length": 8,
                "cache": {"max_length": 8},
            },
            {},
            "`GPT2LMHeadModel` is not an encoder and a decoder of text\n    write `task: text-generation`",
        ),
        (
            {"task": "seq2seq", "config": SMALL_T5, "max_source_length": 8, "cache": {"max_length": 8}},
            {"runner": "executorch-asr/v1", "constant_methods": {"get_eos_ids": [1]}},
            "nothing says which token a text of the decoder begins with",
        ),
        (
            {"task": "speech-to-text", "config": MOONSHINE, "cache": {"max_length": 8}},
            {},
            "does not say the shape of this input\n    write `example_inputs` for `encoder` and for `text_decoder`",
        ),
        (
            {"task": "seq2seq", "config": T5_GEMMA, "max_source_length": 17, "cache": {"max_length": 12}},
            {},
            "max_source_length 17 is more than the configuration's `max_position_embeddings` 16\n    write 16 or less",
        ),
        (
            {"task": "seq2seq", "config": T5_GEMMA, "max_source_length": 16, "cache": {"max_length": 13}},
            {},
            "cache.max_length 13 is more than the configuration's `max_position_embeddings` 12\n    write 12 or less",
        ),
        (
            {"task": "speech-to-text", "config": CONFIGS["whisper"], "cache": {"max_length": 8}},
            {"runner": "executorch-asr/v1", "model_keys": {"dtype": "float16"}},
            "the runner gives images and features in float32 or bfloat16, and the model is in float16",
        ),
        (
            {
                "task": "speech-to-text",
                "config": CONFIGS["whisper"],
                "max_source_length": 30,
                "cache": {"max_length": 8},
            },
            {},
            "takes `input_features`, whose length the configuration says\n    remove `max_source_length`",
        ),
        (
            {"task": "seq2seq", "config": PROPHETNET, "max_source_length": 8, "cache": {"max_length": 8}},
            {},
            "`ProphetNetForConditionalGeneration` makes no mask for a token, and has a branch of its own for the first",
        ),
        (
            {"task": "seq2seq", "config": LED, "max_source_length": 16, "cache": {"max_length": 8}},
            {},
            "`\n    the value of a tensor decides there, and an export does not know it",  # after the line
        ),
    ],
)
def test_what_cannot_be_a_program_is_named(
    huggingface: dict[str, Any], keys: dict[str, Any], message: str, build: Build
) -> None:
    model_keys = {"huggingface": huggingface, **keys.pop("model_keys", {})}
    outcome = build(json.dumps({"schema": "executorch-model/v1", "name": "net", "model": model_keys, **keys}))
    assert outcome.code in (1, 2)
    assert message in outcome.err
    assert "Traceback" not in outcome.err


_WIDE = {"vocab_size": VOCABULARY, "d_model": 32, "is_encoder_decoder": True}
_OF_BART: dict[str, Any] = {
    **_WIDE,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 3,
    "forced_eos_token_id": None,
}
_OF_T5: dict[str, Any] = {**_WIDE, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_decoder_layers": 2, "num_heads": 4}
TYPES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("bart", "m2m_100", "marian", "mbart", "pegasus"), _OF_BART),
    **dict.fromkeys(("mt5", "t5", "umt5"), _OF_T5),
    "mvp": _OF_BART,  # reads the number of tokens in the cache
    "fsmt": {  # makes no mask for a token, and has an encoder that is no model of transformers
        **{key: value for key, value in _OF_BART.items() if key != "vocab_size"},
        "src_vocab_size": VOCABULARY,
        "tgt_vocab_size": VOCABULARY,
        "langs": ["en", "de"],
    },
    "switch_transformers": {  # has experts in a loop, and an encoder that reads its mask
        **_OF_T5,
        "num_layers": 2,
        "num_experts": 3,
        "num_sparse_encoder_layers": 1,
        "num_sparse_decoder_layers": 1,
    },
    "nllb-moe": {  # takes its mask for one of padding
        **_OF_BART,
        "num_experts": 3,
        "encoder_sparse_step": 1,
        "decoder_sparse_step": 1,
        "moe_eval_capacity_token_fraction": -1.0,
    },
    "speech_to_text": {
        **{key: value for key, value in _OF_BART.items() if key != "max_position_embeddings"},
        "input_feat_per_channel": 16,
        "conv_channels": 16,
        "max_source_positions": 40,
        "max_target_positions": 32,
    },
    "moonshine": {
        **MOONSHINE,
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "encoder_num_hidden_layers": 2,
        "decoder_num_hidden_layers": 2,
    },
}
SOUNDS: dict[str, tuple[tuple[int, ...], dict[str, int]]] = {
    "speech_to_text": ((1, 40, 16), {}),
    "moonshine": ((1, 8000), {"max_source_length": 8000}),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", TYPES)
def test_each_type_that_init_knows_says_what_transformers_says(kind: str, tmp_path: Path) -> None:
    """The scores of a text of four tokens, one after the other. Tables that the class computes keep their numbers."""
    config, is_speech = {"model_type": kind, **TYPES[kind]}, kind in SOUNDS
    auto = transformers.AutoModelForSpeechSeq2Seq if is_speech else transformers.AutoModelForSeq2SeqLM
    made = auto.from_config(transformers.AutoConfig.for_model(**config)).eval()
    numbers = torch.Generator().manual_seed(5)
    for parameter in (each for each in made.parameters() if each.dim() > 1 and each.requires_grad):
        parameter.data = torch.randn(parameter.shape, generator=numbers) / 2
    save_file({key: value.clone() for key, value in made.state_dict().items()}, tmp_path / "model.safetensors")
    task: dict[str, Any] = {"task": "seq2seq", "max_source_length": 20}
    if is_speech:
        task = {"task": "speech-to-text", **SOUNDS[kind][1]}
    manifest = {
        "schema": "executorch-model/v1",
        "name": "net",
        "model": {
            "huggingface": {**task, "config": config, "cache": {"max_length": 16}},
            "weights": "model.safetensors",
        },
        "defaults": {"partitioners": ["xnnpack"]},
    }
    (tmp_path / "model.yaml").write_text(json.dumps(manifest))
    commands.build(tmp_path / "model.yaml", tmp_path / "out")
    shape = SOUNDS[kind][0] if is_speech else ()
    inputs = torch.randn(shape, generator=numbers) if is_speech else tokens(9, vocab_size=VOCABULARY, seed=1)
    text = torch.tensor([[3, 7, 9, 4]])
    [[[states]]] = run(tmp_path / "out/net.pte", [[("encoder", [inputs])]], tmp_path)
    calls = [("text_decoder", [text[:, i : i + 1], states, torch.tensor([i])]) for i in range(text.shape[1])]
    [outputs] = run(tmp_path / "out/net.pte", [calls], tmp_path)
    with torch.no_grad():
        expected = made(inputs, decoder_input_ids=text, use_cache=False).logits[0]
    actual = torch.cat([scores for (scores,) in outputs])
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def test_sounds_of_several_lengths_have_one_decoder(tmp_path: Path) -> None:
    """Moonshine takes a sound as it is: an encoder for each length, and a decoder for all of their outputs."""
    config = {"model_type": "moonshine", **TYPES["moonshine"]}
    made = transformers.AutoModelForSpeechSeq2Seq.from_config(transformers.AutoConfig.for_model(**config)).eval()
    numbers = torch.Generator().manual_seed(5)
    for parameter in (each for each in made.parameters() if each.dim() > 1 and each.requires_grad):
        parameter.data = torch.randn(parameter.shape, generator=numbers) / 2
    save_file({key: value.clone() for key, value in made.state_dict().items()}, tmp_path / "model.safetensors")
    sounds = {"encoder": torch.randn(1, 8000, generator=numbers), "longer": torch.randn(1, 20000, generator=numbers)}
    with torch.no_grad():
        states = {name: made.get_encoder()(sound).last_hidden_state for name, sound in sounds.items()}
    shape, most = list(states["encoder"].shape), states["longer"].shape[1]
    token, position = {"shape": [1, 1], "dtype": "int64"}, {"shape": [1], "dtype": "int64"}
    manifest = {
        "schema": "executorch-model/v1",
        "name": "net",
        "model": {
            "huggingface": {"task": "speech-to-text", "config": config, "cache": {"max_length": 16}},
            "weights": "model.safetensors",
        },
        "defaults": {"partitioners": ["xnnpack"]},
        "methods": {
            **{
                name: {"entry": "encode", "example_inputs": [{"shape": list(sound.shape)}]}
                for name, sound in sounds.items()
            },
            "text_decoder": {
                "example_inputs": [token, {"shape": shape}, position],
                "dynamic_shapes": [None, [None, {"dim": "frames", "min": 1, "max": most}, None], None],
            },
        },
    }
    (tmp_path / "model.yaml").write_text(json.dumps(manifest))
    commands.build(tmp_path / "model.yaml", tmp_path / "out")
    text = torch.tensor([[3, 7, 9, 4]])
    for name, sound in sounds.items():
        [[[found]]] = run(tmp_path / "out/net.pte", [[(name, [sound])]], tmp_path)
        calls = [("text_decoder", [text[:, i : i + 1], found, torch.tensor([i])]) for i in range(4)]
        [outputs] = run(tmp_path / "out/net.pte", [calls], tmp_path)
        with torch.no_grad():
            expected = made(sound, decoder_input_ids=text, use_cache=False).logits[0]
        actual = torch.cat([scores for (scores,) in outputs])
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


STREAMING: dict[str, Any] = {
    "model_type": "moonshine_streaming",
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 1,
    "encoder_config": {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "sliding_windows": [[4, 2], [3, 0]],
    },
}


def streamed(encode: Callable[[torch.Tensor], torch.Tensor], sound: torch.Tensor) -> torch.Tensor:
    """The vectors of a sound of which parts arrive, as docs/speech.md shows."""
    frame, step, total = 320, 4, sound.shape[1] // 320
    windows = STREAMING["encoder_config"]["sliding_windows"]
    before, after = sum(left - 1 for left, _ in windows) + 3, sum(max(right - 1, 0) for _, right in windows)
    vectors, start = [], 0
    while start < total:
        first, last = max(0, start - before), min(total, start + step + after)
        made = encode(sound[:, first * frame : last * frame])
        stop = total if last == total else start + step
        vectors.append(made[:, start - first : stop - first])
        start = stop
    return torch.cat(vectors, 1)


def test_parts_of_a_stream_are_those_of_the_whole_sound(tmp_path: Path) -> None:
    """The encoder of Moonshine streaming attends to windows, which transformers takes from a mask of the sound."""
    made = transformers.AutoModelForSpeechSeq2Seq.from_config(transformers.AutoConfig.for_model(**STREAMING)).eval()
    numbers = torch.Generator().manual_seed(5)
    for parameter in (each for each in made.parameters() if each.dim() > 1):
        parameter.data = torch.randn(parameter.shape, generator=numbers) / 3
    made.save_pretrained(tmp_path / "net")
    assert main.main(["init", "--huggingface", str(tmp_path / "net"), "-o", str(tmp_path)]) == 0
    commands.build(tmp_path / "net.yaml", tmp_path / "out")
    program, sound = tmp_path / "out/net.pte", torch.randn(1, 320 * 30, generator=numbers)
    found = streamed(lambda part: run(program, [[("encoder", [part])]], tmp_path)[0][0][0], sound)
    text, mask = torch.tensor([[3, 7, 9, 4]]), torch.ones(sound.shape, dtype=torch.int64)
    with torch.no_grad():
        states = made.get_encoder()(sound, attention_mask=mask).last_hidden_state
        full = made.get_encoder()(sound).last_hidden_state
        expected = made(sound, attention_mask=mask, decoder_input_ids=text, use_cache=False).logits[0]
    torch.testing.assert_close(found, states, rtol=1e-3, atol=1e-3)
    assert float((full - states).abs().max()) > 0.1
    calls = [("text_decoder", [text[:, i : i + 1], found, torch.tensor([i])]) for i in range(4)]
    [outputs] = run(program, [calls], tmp_path)
    actual = torch.cat([scores for (scores,) in outputs])
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def test_parameters_that_a_class_computes_are_no_weights() -> None:
    """Marian's tables of positions are in no checkpoint, and a model whose weights are loaded has them all the same."""
    config = transformers.MarianConfig(
        vocab_size=VOCABULARY,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=32,
        pad_token_id=0,
        decoder_start_token_id=0,
    )
    right = transformers.MarianMTModel(config)
    with empty_parameters.parameters_left_empty():
        made = transformers.MarianMTModel(config)
    empty_parameters.keep_computed(made)
    names = {f"model.{part}.embed_positions.weight" for part in ("encoder", "decoder")}
    assert right.state_dict().keys() - made.state_dict().keys() == names
    for name in names:
        torch.testing.assert_close(made.get_buffer(name), right.get_parameter(name).data, rtol=0, atol=0)
