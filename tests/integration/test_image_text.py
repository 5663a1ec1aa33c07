"""A model for images and text from a manifest: ExecuTorch's own runner says what transformers says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.helpers import commands
from tests.helpers.once import made_once
from tests.helpers.runtime import run
from tests.integration.conftest import Build
from tests.integration.test_language_models import VOCABULARY, tokenizer

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
LLAVA = {
    "model_type": "llava",
    "image_token_index": IMAGE,
    "vision_config": {"model_type": "clip_vision_model", **VISION},
    "text_config": TEXT,
}
CACHE = {"max_length": 64, "max_seq_length": 16, "kind": "custom"}
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
    state = {key: value.clone() for key, value in model(config).state_dict().items()}
    save_file(state, directory / "model.safetensors")
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
def llava(shared_directory: Path) -> Path:
    """The program of a LLaVA with ExecuTorch's cache."""

    def make(partial: Path) -> None:
        commands.build(project(partial, LLAVA, CACHE), partial / "out")

    return made_once(shared_directory / "llava", make) / "out/net.pte"


def picture(size: int) -> torch.Tensor:
    return torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(1))


def generated(before: list[int], image: torch.Tensor, after: list[int], count: int) -> list[int]:
    """The tokens that transformers generates after text, an image and text."""
    made = model(LLAVA)
    places = made.get_image_features(pixel_values=image, return_dict=True).pooler_output
    ids = torch.tensor([[*before, *[IMAGE] * sum(len(each) for each in places), *after]])
    how = {"max_new_tokens": count, "do_sample": False, "eos_token_id": VOCABULARY + 1}
    found: list[int] = made.generate(input_ids=ids, pixel_values=image, **how)[0, ids.shape[1] :].tolist()
    return found


def test_the_runner_says_what_transformers_says(llava: Path, tmp_path: Path) -> None:
    before, after, image = [2], [25, 26, 27], picture(12)
    torch.save(image, tmp_path / "image.pt")
    expected = generated(before, image, after, 20)
    assert len(set(expected)) > 5  # otherwise a wrong cache could pass
    given = (llava, llava.with_suffix(".tokenizer") / "tokenizer.json", tmp_path / "image.pt", before, after, 20)
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, *map(str, given)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    [text] = [line.removeprefix("TEXT ") for line in done.stdout.splitlines() if line.startswith("TEXT ")]
    until = expected.index(1) if 1 in expected else len(expected)
    assert text.replace("</s>", "") == tokenizer().decode(expected[:until], skip_special_tokens=False)


def test_the_image_counts(llava: Path, tmp_path: Path) -> None:
    """The tokens of another image differ, so that the test of the runner could not pass without its image."""
    one, other = (generated([2], image, [25, 26, 27], 8) for image in (picture(12), -picture(12)))
    assert one != other
    [[[features]]] = run(llava, [[("vision_encoder", [picture(12)])]], tmp_path)
    assert features.shape == (1, 9, 32)


def test_the_contract_of_the_runner_is_in_the_report(llava: Path) -> None:
    found = json.loads(llava.with_suffix(".report.json").read_text())["constant_methods"]
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
            {
                "model_type": "gemma3",
                "mm_tokens_per_image": 9,
                "vision_config": VISION,
                "text_config": {**TEXT, "model_type": "gemma3_text", "head_dim": 8},
            },
            {"max_length": 32},
            "`gemma3` is not among the models for images that this task knows",
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
