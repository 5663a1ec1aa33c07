"""A model for images and text from a manifest: ExecuTorch's own runner says what transformers says."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers import commands
from tests.helpers.language_models import VOCABULARY, tokenizer
from tests.helpers.once import made_once
from tests.helpers.runtime import run
from tests.integration.conftest import Build

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of transformers

IMAGE = 62  # the token that stands for an image
VISION = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 12,
    "patch_size": 4,
}
TEXT = {
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llava": {"image_token_index": IMAGE, "vision_config": {"model_type": "clip_vision_model", **VISION}},
    "internvl": {
        "image_token_id": IMAGE,
        "vision_config": {"model_type": "internvl_vision", **VISION, "image_size": [16, 16], "patch_size": [4, 4]},
        "text_config": {**TEXT, "model_type": "qwen2"},
    },
    "smolvlm": {
        "image_token_id": IMAGE,
        "pad_token_id": 0,
        "scale_factor": 2,
        "vision_config": {"model_type": "smolvlm_vision", **VISION, "image_size": 16},
    },
    "idefics3": {
        "image_token_id": IMAGE,
        "pad_token_id": 0,
        "scale_factor": 2,
        "vision_config": {"model_type": "idefics3_vision", **VISION, "image_size": 16},
    },
    "gemma3": {  # tokens of an image attend to each other, and one layer sees fewer tokens than the image has
        "image_token_id": IMAGE,
        "mm_tokens_per_image": 9,
        "tie_word_embeddings": False,
        "vision_config": {"model_type": "siglip_vision_model", **VISION},
        "text_config": {
            **TEXT,
            "model_type": "gemma3_text",
            "head_dim": 8,
            "query_pre_attn_scalar": 8,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    },
}
for name, config in CONFIGS.items():
    CONFIGS[name] = {"model_type": name, "text_config": TEXT, **config}
LLAVA = CONFIGS["llava"]
KINDS = {"gemma3": "ring"}
AFTER = {"gemma3": [4, 56, 27]}  # the tokens after an image; after others, the model repeats one token
RUNNER = """
import json, sys
import torch
from executorch.extension.llm.custom_ops import custom_ops
from executorch.extension.llm.runner import (
    GenerationConfig, MultimodalRunner, make_image_input, make_token_input,
)

program, tokenizer, image, before, after, count = sys.argv[1:]
runner = MultimodalRunner(program, tokenizer)
before, after = (make_token_input(json.loads(tokens)) for tokens in (before, after))
inputs = [before, make_image_input(torch.load(image)), after]
text = []
runner.generate(inputs, GenerationConfig(echo=False, max_new_tokens=int(count), temperature=0.0), text.append)
print("\\nTEXT " + "".join(text))
"""


def model(config: dict[str, Any]) -> Any:
    """A model of transformers whose scores are far from zero and from each other."""
    made = transformers.AutoModelForImageTextToText.from_config(transformers.AutoConfig.for_model(**config)).eval()
    numbers = torch.Generator().manual_seed(5)
    for parameter in (each for name, each in made.named_parameters() if name.endswith("class_embedding")):
        parameter.data = torch.randn(parameter.shape, generator=numbers)
    for parameter in made.parameters():
        if parameter.dim() > 1:
            parameter.data = torch.randn(parameter.shape, generator=numbers) / 2
    return made


def project(directory: Path, config: dict[str, Any], cache: dict[str, Any]) -> Path:
    """Writes a manifest with its weights and tokenizer, and returns the manifest."""
    directory.mkdir(parents=True, exist_ok=True)
    model(config).save_pretrained(directory)
    tokenizer().save(str(directory / "tokenizer.json"))
    manifest = {
        "schema": "executorch-model/v1",
        "name": "net",
        "runner": "executorch-multimodal/v1",
        "tokenizer": "tokenizer.json",
        "model": {
            "huggingface": {"task": "image-text-to-text", "config": config, "cache": cache},
            "weights": "model.safetensors",
        },
        "constant_methods": {"get_eos_ids": [1]},
        "defaults": {"partitioners": ["xnnpack"]},
    }
    path = directory / "model.yaml"
    path.write_text(json.dumps(manifest))
    return path


@pytest.fixture(scope="session")
def program(shared_directory: Path) -> Callable[[str], Path]:
    """Builds the program of a model when it is first needed, with one of ExecuTorch's caches, and returns its path."""

    def get(name: str) -> Path:
        def make(partial: Path) -> None:
            cache = {"max_length": 64, "max_seq_length": 16, "kind": KINDS.get(name, "custom")}
            commands.build(project(partial, CONFIGS[name], cache), partial / "out")

        return made_once(shared_directory / f"image-text-{name}", make) / "out/net.pte"

    return get


def picture(name: str) -> torch.Tensor:
    size = CONFIGS[name]["vision_config"]["image_size"]
    height, width = size if isinstance(size, list) else (size, size)
    return torch.randn(1, 3, height, width, generator=torch.Generator().manual_seed(1))


def prompt(name: str, before: list[int], image: torch.Tensor, after: list[int]) -> dict[str, torch.Tensor]:
    """What transformers takes for text, an image and text."""
    pixels = image.unsqueeze(0) if name in ("idefics3", "smolvlm") else image  # these take several images
    places = model(CONFIGS[name]).get_image_features(pixel_values=pixels, return_dict=True).pooler_output
    ids = torch.tensor([[*before, *[IMAGE] * sum(len(each) for each in places), *after]])
    types = {"token_type_ids": (ids == IMAGE).long()} if name == "gemma3" else {}
    return {"input_ids": ids, "pixel_values": pixels, **types}


def generated(name: str, before: list[int], image: torch.Tensor, after: list[int], count: int) -> list[int]:
    """The tokens that transformers generates after text, an image and text."""
    given = prompt(name, before, image, after)
    how = {"max_new_tokens": count, "do_sample": False, "eos_token_id": VOCABULARY + 1}
    found: list[int] = model(CONFIGS[name]).generate(**given, **how)[0, given["input_ids"].shape[1] :].tolist()
    return found


@pytest.mark.sample(always=["llava"])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_runner_says_what_transformers_says(name: str, program: Callable[[str], Path], tmp_path: Path) -> None:
    before, after, image = [2], AFTER.get(name, [25, 26, 27]), picture(name)
    torch.save(image, tmp_path / "image.pt")
    expected = generated(name, before, image, after, 20)
    assert len(set(expected)) > 5  # otherwise a wrong cache could pass
    assert expected != generated(name, before, -image, after, 20)  # otherwise it could pass without its image
    tokens = program(name).with_suffix(".tokenizer") / "tokenizer.json"
    given = (program(name), tokens, tmp_path / "image.pt", before, after, 20)
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, *map(str, given)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    [text] = [line.removeprefix("TEXT ") for line in done.stdout.splitlines() if line.startswith("TEXT ")]
    until = expected.index(1) if 1 in expected else len(expected)
    assert text.replace("</s>", "") == tokenizer().decode(expected[:until], skip_special_tokens=False)


@pytest.mark.sample(always=["gemma3"])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_scores_are_those_of_transformers(name: str, program: Callable[[str], Path], tmp_path: Path) -> None:
    """Text, an image and text in three calls, as the runner gives them, and in one call."""
    before, after, image = [2, 30], [25, 26, 27], picture(name)
    encode = [("vision_encoder", [image]), *(("token_embedding", [torch.tensor([ids])]) for ids in (before, after))]
    [[[features], [first], [last]]] = run(program(name), [encode], tmp_path)
    parts = [first, features, last]
    starts = itertools.accumulate((part.shape[1] for part in parts), initial=0)
    several = [("text_decoder", [part, torch.tensor([start])]) for part, start in zip(parts, starts, strict=False)]
    once = [("text_decoder", [torch.cat(parts, dim=1), torch.tensor([0])])]
    with torch.no_grad():
        expected = model(CONFIGS[name])(**prompt(name, before, image, after)).logits[:, -1]
    for session in run(program(name), [several, once], tmp_path):
        torch.testing.assert_close(session[-1][0], expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def test_the_contract_of_the_runner_is_in_the_report(program: Callable[[str], Path]) -> None:
    found = json.loads(program("llava").with_suffix(".report.json").read_text())["constant_methods"]
    assert found["get_max_seq_len"] == 16
    assert found["use_sdpa_with_kv_cache"] is True
    assert found["get_vocab_size"] == VOCABULARY
    assert "decoder_start_token_id" not in found


@pytest.mark.parametrize(
    ("config", "cache", "message"),
    [
        (LLAVA, {"max_length": 32, "max_seq_length": 8}, "an image has 9 tokens, and a call of `text_decoder` at most"),
        (LLAVA, {"max_length": 129}, "is more than the configuration's `max_position_embeddings` 128"),
        (
            {**LLAVA, "vision_config": {"model_type": "pixtral", **VISION}},
            {"max_length": 32},
            "the tower `pixtral` of `llava` is not among those that this task knows",
        ),
        (
            {"model_type": "paligemma"},
            {"max_length": 32},
            "knows: a prompt attends to its image and to itself in both directions, and the runner gives it in parts",
        ),
        (
            {"model_type": "qwen2_vl"},
            {"max_length": 32},
            "knows: an image has positions in several dimensions (M-RoPE), and the runner counts them in one",
        ),
        (
            {"model_type": "blip"},
            {"max_length": 32},
            "`blip` is not among the models for images that this task knows\n    write a factory for this model; ",
        ),
    ],
)
def test_what_cannot_be_a_program_is_named(
    config: dict[str, Any], cache: dict[str, Any], message: str, build: Build
) -> None:
    huggingface = {"task": "image-text-to-text", "config": config, "cache": cache}
    outcome = build(json.dumps({"schema": "executorch-model/v1", "name": "net", "model": {"huggingface": huggingface}}))
    assert outcome.code in (1, 2)
    assert message in outcome.err
    assert "Traceback" not in outcome.err


SMALL = {"task": "image-text-to-text", "config": LLAVA, "cache": {"max_length": 16, "max_seq_length": 12}}


@pytest.mark.parametrize(
    ("model_keys", "embedding", "message"),
    [
        (
            {},
            {"example_inputs": [{"shape": [1, 12], "dtype": "int64"}]},
            "methods.token_embedding: `token_embedding` does not take every text that `text_decoder` takes, from 1",
        ),
        (
            {"dtype": "float16"},
            {},
            "model.dtype: the runner gives images and features in float32 or bfloat16, and the model is in float16",
        ),
    ],
)
def test_what_the_runner_cannot_give_is_named(
    model_keys: dict[str, Any], embedding: dict[str, Any], message: str, build: Build
) -> None:
    manifest = {
        "schema": "executorch-model/v1",
        "name": "net",
        "runner": "executorch-multimodal/v1",
        "model": {"huggingface": SMALL, **model_keys},
        "methods": {"vision_encoder": {}, "text_decoder": {}, "token_embedding": embedding},
    }
    outcome = build(json.dumps(manifest))
    assert outcome.code == 2
    assert message in outcome.err
