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
PLACES = {"image_token_id": IMAGE, "video_token_id": 61, "vision_start_token_id": 60, "vision_end_token_id": 59}
GRIDS = {"depth": 2, "num_heads": 4, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2}
LEARNED = {
    **GRIDS,
    "hidden_size": 32,
    "intermediate_size": 32,
    "out_hidden_size": 32,
    "num_position_embeddings": 9,
}
MROPE: dict[str, Any] = {
    **{key: value for key, value in TEXT.items() if key != "model_type"},
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]},
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
    "lfm2_vl": {  # a convolution with a state, and images of any size
        "image_token_id": IMAGE,
        "projector_hidden_size": 32,
        "vision_config": {"model_type": "siglip2_vision_model", **VISION, "num_patches": 9, "vision_use_head": False},
        "text_config": {**TEXT, "model_type": "lfm2", "layer_types": ["conv", "full_attention"]},
    },
    "qwen2_vl": {
        **PLACES,
        "vision_config": {**GRIDS, "embed_dim": 32, "hidden_size": 32, "mlp_ratio": 1},
        "text_config": MROPE,
    },
    "qwen2_5_vl": {  # windows, of which some are not full
        **PLACES,
        "vision_config": {
            **GRIDS,
            "hidden_size": 32,
            "intermediate_size": 32,
            "out_hidden_size": 32,
            "window_size": 16,
            "fullatt_block_indexes": [1],
        },
        "text_config": MROPE,
    },
    "qwen3_vl": {  # features of an image for the first layer of the decoder
        **PLACES,
        "vision_config": {**LEARNED, "deepstack_visual_indexes": [0]},
        "text_config": {**MROPE, "head_dim": 8},
    },
    "qwen3_vl_moe": {
        **PLACES,
        "vision_config": {**LEARNED, "deepstack_visual_indexes": [0, 1]},
        "text_config": {
            **MROPE,
            "head_dim": 8,
            "moe_intermediate_size": 16,
            "num_experts": 4,
            "num_experts_per_tok": 2,
        },
    },
    "qwen3_5": {  # a recurrence, and positions in three dimensions
        **PLACES,
        "vision_config": LEARNED,
        "text_config": {
            **MROPE,
            "head_dim": 8,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "rope_parameters": {**MROPE["rope_parameters"], "partial_rotary_factor": 1.0},
        },
    },
    "glm4v": {
        "image_token_id": IMAGE,
        "video_token_id": 61,
        "image_start_token_id": 60,
        "image_end_token_id": 59,
        "video_start_token_id": 58,
        "video_end_token_id": 57,
        "vision_config": {**GRIDS, "hidden_size": 32, "intermediate_size": 32, "out_hidden_size": 32, "image_size": 16},
        "text_config": MROPE,
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
GRIDDED = tuple(name for name in CONFIGS if name.startswith(("qwen", "glm")))  # their images have grids of patches
SIZES = {name: [16, 24] for name in (*GRIDDED, "lfm2_vl")}  # the image of models whose configuration does not say it
KEEP_STATES = ("gemma3", "lfm2_vl", "qwen3_5")  # or rings, so that they cannot go back in a text
AFTER = {"gemma3": [4, 56, 27]}  # the tokens after an image; after others, the model repeats one token
RUNNER = """
import json, sys
import torch
from executorch.extension.llm.custom_ops import custom_ops
from executorch.extension.llm.runner import (
    GenerationConfig, MultimodalRunner, make_image_input, make_token_input,
)

program, tokenizer, images, before, after, count = sys.argv[1:]
runner = MultimodalRunner(program, tokenizer)
before, after = (make_token_input(json.loads(tokens)) for tokens in (before, after))
for image in torch.load(images):
    text = []
    config = GenerationConfig(echo=False, max_new_tokens=int(count), temperature=0.0)
    runner.generate([before, make_image_input(image), after], config, text.append)
    print("\\nTEXT " + "".join(text))
    runner.reset()
"""


def model(config: dict[str, Any]) -> Any:
    """A model of transformers whose scores are far from zero and from each other."""
    torch.manual_seed(5)  # for what stays as it is made, such as decays of a recurrence
    made = transformers.AutoModelForImageTextToText.from_config(transformers.AutoConfig.for_model(**config)).eval()
    numbers = torch.Generator().manual_seed(5)
    for parameter in (each for name, each in made.named_parameters() if name.endswith("class_embedding")):
        parameter.data = torch.randn(parameter.shape, generator=numbers)
    for parameter in made.parameters():
        if parameter.dim() > 1:
            parameter.data = torch.randn(parameter.shape, generator=numbers) / 2
    return made


def project(directory: Path, name: str, cache: dict[str, Any]) -> Path:
    """Writes a manifest with its weights and tokenizer, and returns the manifest."""
    config = CONFIGS[name]
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
    if name in SIZES:
        inputs = [{"example_inputs": [{"shape": [1, 3, *size]}]} for size in (SIZES[name], SIZES[name][::-1])]
        other = {"entry": "encode_image", **inputs[1]}
        methods = {"vision_encoder": inputs[0], "other_encoder": other, "token_embedding": {}, "text_decoder": {}}
        manifest["methods"] = methods
    path = directory / "model.yaml"
    path.write_text(json.dumps(manifest))
    return path


@pytest.fixture(scope="session")
def program(shared_directory: Path) -> Callable[[str], Path]:
    """Builds the program of a model when it is first needed, with one of ExecuTorch's caches, and returns its path."""

    def get(name: str) -> Path:
        def make(partial: Path) -> None:
            cache = {"max_length": 64, "max_seq_length": 24, "kind": KINDS.get(name, "custom")}
            commands.build(project(partial, name, cache), partial / "out")

        return made_once(shared_directory / f"image-text-{name}", make) / "out/net.pte"

    return get


def picture(name: str) -> torch.Tensor:
    size = SIZES[name] if name in SIZES else CONFIGS[name]["vision_config"]["image_size"]
    height, width = size if isinstance(size, list) else (size, size)
    return torch.randn(1, 3, height, width, generator=torch.Generator().manual_seed(1))


def rows_of_patches(image: torch.Tensor) -> torch.Tensor:
    """Patches row by row, as `convert_image_to_patches` of LFM2-VL makes them."""
    size = VISION["patch_size"]
    _, channels, height, width = image.shape
    split = image.reshape(1, channels, height // size, size, width // size, size)
    return split.permute(0, 2, 4, 3, 5, 1).reshape(1, height // size * (width // size), -1)


def merged_patches(image: torch.Tensor) -> torch.Tensor:
    """Patches in the order in which they are merged, as `patchify` of Qwen2-VL makes them."""
    size, merge = GRIDS["patch_size"], GRIDS["spatial_merge_size"]
    _, channels, height, width = image.shape
    rows, columns = height // size, width // size
    split = image.reshape(1, channels, rows // merge, merge, size, columns // merge, merge, size)
    split = split.permute(0, 2, 5, 3, 6, 1, 4, 7).unsqueeze(6)
    frames = GRIDS["temporal_patch_size"]
    return split.expand(-1, -1, -1, -1, -1, -1, frames, -1, -1).reshape(rows * columns, channels * frames * size**2)


def processed(name: str, images: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """What the processor of transformers makes of images that are scaled and normalized."""
    grids = [[side // VISION["patch_size"] for side in image.shape[-2:]] for image in images]
    if name == "lfm2_vl":
        pixels = torch.cat([rows_of_patches(image) for image in images])
        mask = torch.ones(pixels.shape[:2], dtype=torch.int32)
        return {"pixel_values": pixels, "spatial_shapes": torch.tensor(grids), "pixel_attention_mask": mask}
    if name in GRIDDED:
        pixels = torch.cat([merged_patches(image) for image in images])
        return {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, *grid] for grid in grids])}
    pixels = torch.cat(images)
    return {"pixel_values": pixels.unsqueeze(0) if name in ("idefics3", "smolvlm") else pixels}  # these take several


def prompt(name: str, *parts: list[int] | torch.Tensor) -> dict[str, torch.Tensor]:
    """What transformers takes for tokens and images."""
    images, own = [part for part in parts if isinstance(part, torch.Tensor)], model(CONFIGS[name])
    inputs = processed(name, images)
    features = [own.get_image_features(**processed(name, [image]), return_dict=True).pooler_output for image in images]
    lengths = iter([sum(map(len, each)) for each in features])
    tokens = [[IMAGE] * next(lengths) if isinstance(part, torch.Tensor) else part for part in parts]
    ids = torch.tensor([[*itertools.chain(*tokens)]])
    places = {"gemma3": "token_type_ids"}.get(name, "mm_token_type_ids" if name in GRIDDED else None)
    return {"input_ids": ids, **inputs, **({} if places is None else {places: (ids == IMAGE).long()})}


def generated(name: str, before: list[int], image: torch.Tensor, after: list[int], count: int) -> list[int]:
    """The tokens that transformers generates after text, an image and text."""
    given = prompt(name, before, image, after)
    how = {"max_new_tokens": count, "do_sample": False, "eos_token_id": VOCABULARY + 1}
    found: list[int] = model(CONFIGS[name]).generate(**given, **how)[0, given["input_ids"].shape[1] :].tolist()
    return found


@pytest.mark.long
@pytest.mark.parametrize("name", CONFIGS)
def test_the_runner_says_what_transformers_says(name: str, program: Callable[[str], Path], tmp_path: Path) -> None:
    """Two prompts, one after the other."""
    before, after, image = [2], AFTER.get(name, [25, 26, 27]), picture(name)
    images = [image, -image]
    torch.save(images, tmp_path / "images.pt")
    expected = [generated(name, before, each, after, 20) for each in images]
    assert len(set(expected[0])) > 5  # otherwise a wrong cache could pass
    assert expected[0] != expected[1]  # otherwise it could pass without its image
    tokens = program(name).with_suffix(".tokenizer") / "tokenizer.json"
    given = (program(name), tokens, tmp_path / "images.pt", before, after, 20)
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, *map(str, given)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    texts = [line.removeprefix("TEXT ") for line in done.stdout.splitlines() if line.startswith("TEXT ")]
    for text, wanted in zip(texts, expected, strict=True):
        until = wanted.index(1) if 1 in wanted else len(wanted)
        assert text.replace("</s>", "") == tokenizer().decode(wanted[:until], skip_special_tokens=False)


@pytest.mark.long
@pytest.mark.parametrize("name", CONFIGS)
def test_the_scores_are_those_of_transformers(name: str, program: Callable[[str], Path], tmp_path: Path) -> None:
    """Texts and two images in a call for each, as the runner gives them, and in one call; after the begin of another
    text; and after a return to an earlier position. Where a model takes images of several sizes, they have different
    ones."""
    image = picture(name)
    other, encoder = (image.mT.contiguous(), "other_encoder") if name in SIZES else (-image, "vision_encoder")
    parts = [[2, 30], image, [25], other, [26, 27, 28]]
    methods = ["token_embedding", "vision_encoder", "token_embedding", encoder, "token_embedding"]
    inputs = [part if isinstance(part, torch.Tensor) else torch.tensor([part]) for part in parts]
    [results] = run(program(name), [[(method, [each]) for method, each in zip(methods, inputs, strict=True)]], tmp_path)
    embeddings = [embedded for [embedded] in results]
    starts = itertools.accumulate((part.shape[1] for part in embeddings), initial=0)
    several = [("text_decoder", [part, torch.tensor([start])]) for part, start in zip(embeddings, starts, strict=False)]
    once = [("text_decoder", [torch.cat(embeddings, dim=1), torch.tensor([0])])]
    sessions = [several, once, [*several[:2], *several]]
    if name not in KEEP_STATES:
        back = ("text_decoder", [embeddings[4], several[1][1][1]])
        sessions.append([*several, back, *several[1:]])
    with torch.no_grad():
        expected = model(CONFIGS[name])(**prompt(name, *parts)).logits[:, -1]
    for session in run(program(name), sessions, tmp_path):
        torch.testing.assert_close(session[-1][0], expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


@pytest.mark.long("llava")
def test_the_contract_of_the_runner_is_in_the_report(program: Callable[[str], Path]) -> None:
    found = json.loads(program("llava").with_suffix(".report.json").read_text())["constant_methods"]
    assert found["get_max_seq_len"] == 24
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
            CONFIGS["qwen2_vl"],
            {"max_length": 32},
            "vision_encoder: `Qwen2VLForConditionalGeneration` takes images of many sizes, and a method takes one",
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


@pytest.mark.parametrize(
    ("longest", "image", "dynamic", "message"),
    [
        (32, [1, 3, 16, 20], {}, "an image of 16 x 20 pixels cannot be cut into patches\n    write a height and a"),
        (4, [1, 3, 16, 24], {}, "an image has 6 tokens, and a call of `text_decoder` at most 4"),
        (32, [2, 3, 16, 24], {}, "an image has the shape [2, 3, 16, 24]\n    write [1, 3, HEIGHT, WIDTH]: one image"),
        (32, [3, 16, 24], {}, "an image has the shape [3, 16, 24]"),
        (
            32,
            [1, 3, 16, 24],
            {"dynamic_shapes": [[None, None, None, {"dim": "width", "min": 8, "max": 64, "multiple_of": 8}]]},
            "an image that the model cuts into patches has a dynamic size\n    write a method for each size",
        ),
    ],
)
def test_an_image_that_cannot_have_patches_is_named(
    longest: int, image: list[int], dynamic: dict[str, Any], message: str, build: Build
) -> None:
    cache = {"max_length": 32, "max_seq_length": longest}
    huggingface = {"task": "image-text-to-text", "config": CONFIGS["qwen2_5_vl"], "cache": cache}
    encoder = {"example_inputs": [{"shape": image}], **dynamic}
    methods = {"vision_encoder": encoder, "token_embedding": {}, "text_decoder": {}}
    manifest = {
        "schema": "executorch-model/v1",
        "name": "net",
        "model": {"huggingface": huggingface},
        "methods": methods,
    }
    outcome = build(json.dumps(manifest))
    assert outcome.code == 2
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
