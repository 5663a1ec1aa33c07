"""The first manifest of a folder of Hugging Face: only JSON files are read, no file is replaced, and what is written is
a valid manifest."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from etbuild.cli import main
from etbuild.errors import InputError, Problem
from etbuild.export import export_errors
from etbuild.manifest import validate
from etbuild.plan.plan import from_manifest
from etkit.authoring.first_manifest import hub, known_inputs, left_out, other_methods, trial
from etkit.authoring.first_manifest.first import First
from etkit.authoring.first_manifest.kinds import Methods
from etplugins.transformers.class_inputs import ClassInputs
from tests.helpers.snippets import ROOT

SEVERAL = ("encoder_layers", "decoder_layers", "num_hidden_layers")
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 9, "max_position_embeddings": 64}


def folder(path: Path, config: dict[str, Any], *files: str) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    for name in files:
        (path / name).write_text("not read")
    return path


def written(capsys: pytest.CaptureFixture[str], out: Path, *arguments: object) -> tuple[Any, str]:
    """Runs `etbuild init`, which must succeed. Returns the only manifest and what was printed."""
    assert main.main(["init", *map(str, arguments), "-o", str(out), "--no-check", "--bazel"]) == 0
    [path] = out.glob("*.yaml")
    return validate.load(path).data, capsys.readouterr().out


def failure(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main.main(["init", *map(str, arguments)]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "inputs"),
    [
        pytest.param({"architectures": ["BertModel"], "vocab_size": 9}, [[1, 16]], id="encoder"),
        pytest.param(
            {"architectures": ["ViTForMaskedImageModeling"], "num_channels": 1, "image_size": [32, 48]},
            [[1, 1, 32, 48]],
            id="image",
        ),
        pytest.param(
            {"architectures": ["Wav2Vec2Model"], "vocab_size": 9, "conv_dim": [8], "feat_proj_dropout": 0.0},
            [[1, 16000]],
            id="speech",
        ),
    ],
)
def test_the_class_decides_the_methods(
    config: dict[str, Any], inputs: list[list[int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = folder(tmp_path / "My model 1.5", config, "model.safetensors")
    manifest, said = written(capsys, tmp_path / "out", "--huggingface", source)
    assert manifest["name"] == "my_model_1_5"
    assert manifest["model"]["huggingface"]["class"] == config["architectures"][0]
    assert manifest["model"]["weights"] == "model.safetensors"
    method = next(iter(manifest["methods"].values()))
    assert [example["shape"] for example in method["example_inputs"]] == inputs
    assert f"--root '{source}'" in said


def test_a_decoder_is_for_the_runner_of_language_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {**LLAMA, "sliding_window": 48, "dtype": "bfloat16", "eos_token_id": 1}
    source = folder(tmp_path / "llama", config, "tokenizer.json", "tokenizer_config.json", "model.safetensors")
    (source / "generation_config.json").write_text("{}")
    manifest, said = written(capsys, tmp_path / "out", "--huggingface", source)
    huggingface = manifest["model"]["huggingface"]
    assert huggingface["task"] == "text-generation"
    assert huggingface["cache"] == {"max_length": 64, "max_seq_length": 64, "kind": "custom"}
    assert huggingface["generation_config"] == "generation_config.json"
    assert manifest["model"]["dtype"] == "float32"
    assert manifest["runner"] == "executorch-llm/v1"
    assert manifest["tokenizer"] == ["tokenizer.json", "tokenizer_config.json"]
    assert "methods" not in manifest
    target = (tmp_path / "out/BUILD").read_text()
    assert '    data = [\n        "config.json",\n        "generation_config.json",\n    ],\n' in target
    assert '    tokenizer = [\n        "tokenizer.json",\n        "tokenizer_config.json",\n    ],\n' in target
    assert said.splitlines()[-1].startswith("then: etbuild generate ")


@pytest.mark.parametrize("key", ["max_position_embeddings", "n_positions", "max_seq_len", "context_length"])
def test_the_cache_is_as_long_as_the_model(key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {name: value for name, value in LLAMA.items() if name != "max_position_embeddings"}
    source = folder(tmp_path / "net", {**config, key: 48})
    manifest, _ = written(capsys, tmp_path / "out", "--huggingface", source)
    cache = manifest["model"]["huggingface"]["cache"]
    assert cache == {"max_length": 48, "max_seq_length": 48, "kind": "custom"}


RANGES: dict[str, Any] = {
    "moonshine": {
        "encoder": {"dynamic_shapes": [[None, {"dim": "samples", "min": 1600, "max": 160000}]]},
        "text_decoder": {"dynamic_shapes": [None, [None, {"dim": "frames", "min": 1, "max": 417}, None], None]},
    },
    "moonshine_streaming": {
        "encoder": {"dynamic_shapes": [[None, {"dim": "samples", "multiple_of": 160, "min": 800, "max": 80000}]]},
        "text_decoder": {"dynamic_shapes": [None, [None, {"dim": "frames", "min": 1, "max": 500}, None], None]},
    },
}
"""The methods of models whose sounds have any length in a range."""


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        (
            {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "n_positions": 256},
            {"task": "seq2seq", "max_source_length": 256, "cache": {"max_length": 256}},
        ),
        (
            {"architectures": ["MarianMTModel"], "model_type": "marian", "max_position_embeddings": 1024},
            {"task": "seq2seq", "max_source_length": 512, "cache": {"max_length": 512}},
        ),
        (
            {
                "architectures": ["WhisperForConditionalGeneration"],
                "model_type": "whisper",
                "max_target_positions": 448,
            },
            {"task": "speech-to-text", "cache": {"max_length": 448}},
        ),
        (
            {
                "architectures": ["MoonshineForConditionalGeneration"],
                "model_type": "moonshine",
                "max_position_embeddings": 194,
            },
            {"task": "speech-to-text", "max_source_length": 160000, "cache": {"max_length": 194}},
        ),
        (
            {
                "architectures": ["MoonshineStreamingForConditionalGeneration"],
                "model_type": "moonshine_streaming",
                "max_position_embeddings": 4096,
                "encoder_config": {"sample_rate": 8000, "frame_ms": 5.0},
            },
            {"task": "speech-to-text", "max_source_length": 80000, "cache": {"max_length": 512}},
        ),
    ],
)
def test_an_encoder_and_a_decoder_have_a_task(
    config: dict[str, Any], wanted: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = folder(tmp_path / "net", {**config, "is_encoder_decoder": True, "eos_token_id": 1}, "tokenizer.json")
    manifest, said = written(capsys, tmp_path / "out", "--huggingface", source)
    own = {"class": config["architectures"][0], "config": "config.json"}
    assert manifest["model"]["huggingface"] == {**own, **wanted}
    assert (manifest["runner"], manifest["tokenizer"]) == ("executorch-asr/v1", ["tokenizer.json"])
    assert manifest.get("methods") == RANGES.get(config["model_type"])
    assert "generate" not in said


@pytest.mark.parametrize(
    ("kind", "name", "vision"),
    [
        ("llava", "LlavaForConditionalGeneration", {}),
        ("gemma3", "Gemma3ForConditionalGeneration", {"model_type": "siglip_vision_model"}),
        ("smolvlm", "SmolVLMForConditionalGeneration", {"model_type": "smolvlm_vision"}),
    ],
)
def test_a_model_for_images_and_text_has_a_task(
    kind: str, name: str, vision: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = {"max_position_embeddings": 96, "eos_token_id": 1}
    config = {"architectures": [name], "model_type": kind, "vision_config": vision}
    source = folder(tmp_path / "net", {**config, "text_config": text})
    manifest, _ = written(capsys, tmp_path / "out", "--huggingface", source)
    huggingface = manifest["model"]["huggingface"]
    assert (huggingface["task"], huggingface["cache"]) == ("image-text-to-text", {"max_length": 96, "kind": "custom"})
    assert manifest["runner"] == "executorch-multimodal/v1"


@pytest.mark.parametrize(
    ("config", "processor", "side"),
    [
        pytest.param(
            {
                "model_type": "qwen2_5_vl",
                "vision_config": {"patch_size": 14, "spatial_merge_size": 2},
                "max_position_embeddings": 4096,
                "eos_token_id": 1,
            },
            {},
            448,
            id="the size of patches is in the model, and its decoder has no configuration of its own",
        ),
        pytest.param(
            {
                "model_type": "qwen3_vl",
                "vision_config": {"spatial_merge_size": 2},
                "text_config": {"max_position_embeddings": 128, "eos_token_id": 1},
            },
            {"patch_size": 16},
            256,
            id="half of a short text",
        ),
        pytest.param(
            {
                "model_type": "lfm2_vl",
                "vision_config": {"model_type": "siglip2_vision_model"},
                "text_config": {"max_position_embeddings": 4096, "eos_token_id": 1},
            },
            {"encoder_patch_size": 16, "downsample_factor": 2, "tile_size": 512},
            512,
            id="the size is in the processor",
        ),
    ],
)
def test_a_model_for_images_of_many_sizes_gets_one_that_fits(
    config: dict[str, Any], processor: dict[str, Any], side: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = folder(tmp_path / "net", {"architectures": ["SomeForConditionalGeneration"], **config})
    (source / "preprocessor_config.json").write_text(json.dumps(processor))
    manifest, _ = written(capsys, tmp_path / "out", "--huggingface", source)
    assert manifest["model"]["huggingface"]["task"] == "image-text-to-text"
    assert manifest["methods"] == {
        "vision_encoder": {"example_inputs": [{"shape": [1, 3, side, side]}]},
        "token_embedding": {},
        "text_decoder": {},
    }


def test_a_decoder_without_an_end_of_text_is_for_no_runner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = folder(tmp_path / "bloom", {**LLAMA, "model_type": "bloom", "torch_dtype": "float32"})
    manifest, said = written(capsys, tmp_path / "out", "--huggingface", source)
    assert manifest["model"]["huggingface"]["cache"]["kind"] == "custom"
    assert not manifest.keys() & {"runner", "tokenizer"}
    assert not manifest["model"].keys() & {"weights", "dtype"}
    assert "those of the program are random" in (tmp_path / "out/bloom.yaml").read_text()
    assert "generate" not in said


@pytest.mark.parametrize(
    ("config", "processor", "wanted", "shape"),
    [
        pytest.param(
            {"architectures": ["RobertaForSequenceClassification"], "model_type": "roberta"},
            None,
            {"task": "text-classification", "max_source_length": 62},
            None,
            id="text",
        ),
        pytest.param(
            {"architectures": ["BertForTokenClassification"], "model_type": "bert"},
            None,
            {"task": "token-classification", "max_source_length": 64},
            None,
            id="tokens",
        ),
        pytest.param(
            {"architectures": ["ViTForImageClassification"], "image_size": 32},
            {"size": {"height": 64, "width": 64}},
            {"task": "image-classification"},
            None,
            id="image of the configuration",
        ),
        pytest.param(
            {"architectures": ["SiglipForImageClassification"], "vision_config": {"image_size": 32}},
            None,
            {"task": "image-classification"},
            None,
            id="image of a nested configuration",
        ),
        pytest.param(
            {"architectures": ["ResNetForImageClassification"], "num_channels": 1},
            {"size": {"shortest_edge": 256}, "do_center_crop": True, "crop_size": {"height": 224, "width": 192}},
            {"task": "image-classification"},
            [1, 1, 224, 192],
            id="crop",
        ),
        pytest.param(
            {"architectures": ["ResNetForImageClassification"]},
            {"size": {"shortest_edge": 384}, "do_center_crop": False, "crop_size": 224},
            {"task": "image-classification"},
            [1, 3, 384, 384],
            id="shortest edge",
        ),
        pytest.param(
            {"architectures": ["DetrForObjectDetection"], "is_encoder_decoder": True, "backbone_config": {}},
            {"size": {"shortest_edge": 800, "longest_edge": 1333}},
            {"task": "object-detection"},
            [1, 3, 800, 800],
            id="boxes",
        ),
        pytest.param(
            {"architectures": ["ResNetForImageClassification"]},
            {"size": 160},
            {"task": "image-classification"},
            [1, 3, 160, 160],
            id="number",
        ),
        pytest.param(
            {"architectures": ["ResNetForImageClassification"]},
            {"size": {"height": "x", "width": -1}},
            {"task": "image-classification"},
            [1, 3, 224, 224],
            id="nonsense",
        ),
    ],
)
def test_the_class_decides_the_task(
    config: dict[str, Any],
    processor: dict[str, Any] | None,
    wanted: dict[str, Any],
    shape: list[int] | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = folder(tmp_path / "net", {"max_position_embeddings": 64, **config}, "model.safetensors")
    if processor is not None:
        (source / "preprocessor_config.json").write_text(json.dumps(processor))
    manifest, _ = written(capsys, tmp_path / "out", "--huggingface", source)
    own = {"class": config["architectures"][0], "config": "config.json"}
    assert manifest["model"]["huggingface"] == {**own, **wanted}
    assert "runner" not in manifest
    inputs = manifest.get("methods", {}).get("forward", {}).get("example_inputs")
    assert inputs == (None if shape is None else [{"shape": shape}])


@pytest.mark.parametrize(
    ("config", "extractor", "shape"),
    [
        pytest.param(
            {"architectures": ["Wav2Vec2ForCTC"], "conv_dim": [8]},
            {"sampling_rate": 8000},
            [None, {"dim": "samples", "min": 800, "max": 80000}],
            id="samples",
        ),
        pytest.param(
            {"architectures": ["ParakeetForCTC"], "encoder_config": {"num_mel_bins": 80}},
            {"sampling_rate": 16000, "hop_length": 160},
            [None, {"dim": "frames", "min": 10, "max": 1000}, None],
            id="frames of a spectrogram",
        ),
        pytest.param(
            {"architectures": ["Wav2Vec2BertForCTC"], "feature_projection_input_dim": 160},
            {"sampling_rate": 16000, "stride": 2},
            [None, {"dim": "frames", "min": 5, "max": 500}, None],
            id="frames of several",
        ),
    ],
)
def test_speech_without_a_decoder_has_a_range(
    config: dict[str, Any],
    extractor: dict[str, Any],
    shape: list[Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = folder(tmp_path / "net", config, "model.safetensors")
    (source / "preprocessor_config.json").write_text(json.dumps(extractor))
    manifest, _ = written(capsys, tmp_path / "out", "--huggingface", source)
    own = {"class": config["architectures"][0], "config": "config.json", "task": "automatic-speech-recognition"}
    assert manifest["model"]["huggingface"] == {**own, "max_source_length": shape[1]["max"]}
    assert manifest["methods"] == {"forward": {"dynamic_shapes": [shape]}}


OF_SENTENCE_TRANSFORMERS = "sentence_transformers.models."
POOLING = {"type": f"{OF_SENTENCE_TRANSFORMERS}Pooling", "path": "1_Pooling"}
DENSE = {"type": f"{OF_SENTENCE_TRANSFORMERS}Dense", "path": "2_Dense"}
NORMALIZE = {"type": f"{OF_SENTENCE_TRANSFORMERS}Normalize", "path": "2_Normalize"}


def embedder(
    path: Path, config: dict[str, Any], modules: list[Any], pooling: dict[str, Any], **files: dict[str, Any]
) -> Path:
    """A folder as sentence-transformers writes it, with the modules after the transformer."""
    source = folder(path, config, "model.safetensors", "tokenizer.json")
    first = {"type": f"{OF_SENTENCE_TRANSFORMERS}Transformer", "path": ""}
    (source / "modules.json").write_text(json.dumps([first, *modules]))
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling/config.json").write_text(json.dumps(pooling))
    for name, content in files.items():
        (source / f"{name}.json").write_text(json.dumps(content))
    return source


@pytest.mark.parametrize(
    ("config", "pooling", "modules", "files", "wanted"),
    [
        pytest.param(
            {"architectures": ["MPNetForMaskedLM"], "model_type": "mpnet", "max_position_embeddings": 514},
            {"word_embedding_dimension": 8, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True},
            [POOLING, NORMALIZE],
            {"sentence_bert_config": {"max_seq_length": 384}},
            {"class": "AutoModel", "pooling": "mean", "normalize": True, "max_source_length": 384},
            id="mean of MPNet",
        ),
        pytest.param(
            {"architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta", "max_position_embeddings": 258},
            {"pooling_mode": "cls"},
            [POOLING],
            {"tokenizer_config": {"model_max_length": 10**30}},
            {"class": "AutoModel", "pooling": "cls", "max_source_length": 256},
            id="first token of XLM-RoBERTa",
        ),
        pytest.param(
            {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "max_position_embeddings": 32768},
            {"pooling_mode_lasttoken": True, "include_prompt": True},
            [POOLING, NORMALIZE],
            {"tokenizer_config": {"model_max_length": 131072}},
            {"class": "AutoModel", "pooling": "last", "normalize": True, "max_source_length": 512},
            id="last token of Qwen3",
        ),
        pytest.param(
            {"architectures": ["T5EncoderModel"], "model_type": "t5", "n_positions": 512, "is_encoder_decoder": True},
            {"pooling_mode_mean_tokens": True},
            [POOLING],
            {"tokenizer_config": {"model_max_length": 256}},
            {"class": "T5EncoderModel", "pooling": "mean", "max_source_length": 256},
            id="mean of the encoder of T5",
        ),
    ],
)
def test_an_embedder_pools_as_sentence_transformers_does(
    config: dict[str, Any],
    pooling: dict[str, Any],
    modules: list[Any],
    files: dict[str, Any],
    wanted: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = embedder(tmp_path / "net", config, modules, pooling, **files)
    manifest, _ = written(capsys, tmp_path / "out", "--huggingface", source)
    expected = {"task": "feature-extraction", "config": "config.json", **wanted}
    assert manifest["model"]["huggingface"] == expected
    assert not manifest.keys() & {"methods", "runner"}
    assert manifest["tokenizer"][0] == "tokenizer.json"


def test_what_an_application_does_to_a_text_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = {"prompts": {"query": "Q: ", "document": ""}, "default_prompt_name": None}
    files: dict[str, Any] = {"config_sentence_transformers": prompts, "sentence_bert_config": {"do_lower_case": True}}
    pooling = {"pooling_mode_mean_tokens": True}
    source = embedder(tmp_path / "net", {"architectures": ["BertModel"]}, [POOLING], pooling, **files)
    written(capsys, tmp_path / "out", "--huggingface", source)
    said = "puts a prompt of config_sentence_transformers.json before a text and makes a text lower case"
    assert said in (tmp_path / "out/net.yaml").read_text()


@pytest.mark.parametrize(
    ("modules", "pooling", "message"),
    [
        (
            [POOLING, {"type": f"{OF_SENTENCE_TRANSFORMERS}CNN", "path": "2_CNN"}],
            {"pooling_mode_mean_tokens": True},
            "`task: feature-extraction` has no module `CNN`",
        ),
        (
            [POOLING, NORMALIZE, DENSE],
            {"pooling_mode_mean_tokens": True},
            "does not compute `Pooling`, `Normalize`, `Dense` in this order",
        ),
        ([DENSE], {}, "does not compute `Dense` in this order"),
        ([{"type": "custom_st.Pooling", "path": "1_Pooling"}], {}, "has no module `custom_st.Pooling`"),
        ([POOLING], {"pooling_mode_max_tokens": True}, "does not pool with `pooling_mode_max_tokens`"),
        (
            [POOLING],
            {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
            "does not pool with `pooling_mode_mean_tokens` and `pooling_mode_cls_token`",
        ),
        ([POOLING], {"pooling_mode": "cls", "include_prompt": False}, "leaves a part of the text out of the pooling"),
        ([{**POOLING, "path": "../other"}], {}, "the path of a module is not the name of a folder"),
        ([{"path": "1_Pooling"}], {}, "a module has no `type`"),
        ([[]], {}, "not a list of modules"),
    ],
)
def test_an_embedder_with_other_modules_is_refused(
    modules: list[Any], pooling: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = embedder(tmp_path / "net", {"architectures": ["BertModel"]}, modules, pooling)
    assert message in failure(capsys, "--huggingface", source, "-o", tmp_path / "out")


LAYER = {"in_features": 8, "out_features": 4, "activation_function": "torch.nn.modules.activation.ReLU"}


@pytest.mark.parametrize(
    ("changes", "weights", "message"),
    [
        ({"in_features": 0, "bias": 1}, "model.safetensors", "has no `Dense` with `in_features` and `bias`"),
        ({"activation_function": "own.Act"}, "model.safetensors", "has no `Dense` with the activation `own.Act`"),
        ({"module_input_name": "token_embeddings"}, "model.safetensors", "with the features `token_embeddings`"),
        ({"scale": 2}, "model.safetensors", "has no `Dense` with `scale`"),
        ({}, "other", "2_Dense: there is no model.safetensors"),
        ({}, "model.safetensors", None),
        ({}, "pytorch_model.bin", None),
    ],
)
def test_a_dense_layer_follows_the_pooling(
    changes: dict[str, Any], weights: str, message: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, modules = {"architectures": ["BertModel"]}, [POOLING, DENSE, NORMALIZE]
    source = embedder(tmp_path / "net", config, modules, {"pooling_mode_mean_tokens": True})
    folder(source / "2_Dense", {**LAYER, **changes}, weights)
    if message is not None:
        assert message in failure(capsys, "--huggingface", source, "-o", tmp_path / "out")
        return
    manifest, _ = written(capsys, tmp_path / "out", "--huggingface", source)
    layer = {"in_features": 8, "out_features": 4, "bias": True, "activation": "ReLU"}
    assert manifest["model"]["huggingface"]["dense"] == [layer]
    renamed = {"file": f"2_Dense/{weights}", "rename": {"*": "dense.0.*"}}
    assert manifest["model"]["weights"] == ["model.safetensors", renamed]
    assert f'        "2_Dense/{weights}",\n' in (tmp_path / "out/BUILD").read_text()


def test_a_folder_below_the_manifest_needs_no_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("model.safetensors.index.json", "model-1.safetensors", "model-2.safetensors")
    source = folder(tmp_path / "checkpoints/llama", LLAMA, *names)
    shards = {"a": "model-2.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors"}
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    manifest, said = written(capsys, tmp_path, "--huggingface", source, "--name", "tiny")
    assert manifest["model"]["huggingface"]["config"] == "checkpoints/llama/config.json"
    assert manifest["model"]["weights"] == "checkpoints/llama/model.safetensors.index.json"
    assert "--root" not in said
    target = (tmp_path / "BUILD").read_text()
    assert '    name = "tiny",\n    data = ["checkpoints/llama/config.json"],\n    manifest = "tiny.yaml",\n' in target
    assert '        "checkpoints/llama/model-1.safetensors",\n' in target
    assert '        "checkpoints/llama/model.safetensors.index.json",\n' in target


def test_a_snapshot_of_a_hub_has_the_name_of_its_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    snapshot = folder(tmp_path / "models--Some--Llama-3.2/snapshots/0123abcd", LLAMA)
    config = snapshot / "config.json"
    config.rename(tmp_path / "blob")
    config.symlink_to(tmp_path / "blob")
    manifest, _ = written(capsys, tmp_path / "out", "--huggingface", snapshot)
    assert manifest["name"] == "llama_3_2"


def test_a_link_to_itself_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").symlink_to("config.json")
    message = failure(capsys, "--huggingface", tmp_path, "-o", tmp_path / "out")
    assert f"{tmp_path}/config.json: cannot be read: Too many levels of symbolic links" in message


def test_no_file_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = folder(tmp_path / "llama", LLAMA)
    (tmp_path / "BUILD").write_text("# mine\n")
    manifest, said = written(capsys, tmp_path, "--huggingface", source)
    assert (tmp_path / "BUILD").read_text() == "# mine\n"
    assert 'executorch_program(\n    name = "llama",' in said
    before = (tmp_path / "llama.yaml").read_text()
    assert "llama.yaml exists, and is not replaced" in failure(capsys, "--huggingface", source, "-o", tmp_path)
    assert (tmp_path / "llama.yaml").read_text() == before
    assert manifest["name"] == "llama"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        pytest.param({}, "`architectures` names no class", id="no class"),
        pytest.param({"architectures": ["x: 1\nname"]}, "`architectures` names no class", id="no name of a class"),
        pytest.param(
            {"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True, "vocab_size": 9},
            "no first manifest is known for `T5ForConditionalGeneration`",
            id="several inputs",
        ),
        pytest.param(
            {
                "architectures": ["LlavaNextForConditionalGeneration"],
                "model_type": "llava_next",
                "text_config": {},
                "vision_config": {},
            },
            "models for images that this task knows: an image becomes a number of tiles that follows from its size",
            id="tiles of an image",
        ),
        pytest.param([1], "it is not a JSON object", id="a list"),
    ],
)
def test_what_is_not_known_is_refused(
    config: Any, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = folder(tmp_path / "net", config)
    assert message in failure(capsys, "--huggingface", source, "-o", tmp_path / "out", "--no-check")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("shard", ["../secret.bin", "/etc/passwd", 'a", "b.bin', "a\nb", ""])
def test_an_index_cannot_name_files_elsewhere(shard: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = folder(tmp_path / "net", LLAMA)
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    assert "is not a name for a manifest" in failure(capsys, "--huggingface", source, "-o", tmp_path / "out")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--huggingface", "no/such"], "no/such/config.json: cannot be read: No such file or directory"),
        (["--factory", "model.py"], "--factory model.py: expected MODULE:CALLABLE"),
        (["--factory", "model:create", "--kwargs", "{layers: 2}"], "--kwargs {layers: 2}: not JSON"),
        (["--factory", "model:create", "--kwargs", "[2]"], "--kwargs [2]: not an object"),
        (["--factory", "no_such:create"], "the module `no_such` is not among the declared sources"),
    ],
)
def test_a_wrong_argument_is_an_error(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in failure(capsys, *arguments, "-o", tmp_path)


def test_a_name_that_is_no_file_name_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = folder(tmp_path / "llama", LLAMA)
    said = failure(capsys, "--huggingface", source, "--name", "../x", "-o", tmp_path)
    assert "--name ../x: a name has letters, digits, `_` and `-`" in said


def adapter(path: Path, *files: str, kind: str = "LORA") -> Path:
    path.mkdir(parents=True)
    (path / "adapter_config.json").write_text(json.dumps({"peft_type": kind, "base_model_name_or_path": "some/llama"}))
    for name in files or ("adapter_model.safetensors",):
        (path / name).write_text("not read")
    return path


def test_a_language_model_has_a_method_for_each_adapter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = folder(tmp_path / "llama", LLAMA, "model.safetensors")
    inside = adapter(source / "2-math", "adapter_model.bin")
    beside = adapter(tmp_path / "out/adapters/code")
    arguments = ("--huggingface", source, "--adapter", inside, "--adapter", beside)
    manifest, _ = written(capsys, tmp_path / "out", *arguments)
    assert manifest["model"]["adapters"] == {
        "_2_math": {"config": "2-math/adapter_config.json", "weights": "2-math/adapter_model.bin"},
        "code": {"config": "adapters/code/adapter_config.json", "weights": "adapters/code/adapter_model.safetensors"},
    }
    assert "forward_code" in from_manifest(manifest).methods
    target = (tmp_path / "out/BUILD").read_text()
    assert '    named_data = [\n        "_2_math",\n        "code",\n    ],\n' in target
    assert '        "adapters/code/adapter_model.safetensors",\n    ],\n    data = [\n' in target


def test_an_encoder_has_a_method_for_its_adapter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = folder(tmp_path / "bert", {"architectures": ["BertModel"], "vocab_size": 9}, "model.safetensors")
    manifest, _ = written(capsys, tmp_path, "--huggingface", source, "--adapter", adapter(tmp_path / "math"))
    plain, adapted = manifest["methods"]["forward"], manifest["methods"]["forward_math"]
    assert adapted == {**plain, "entry": "forward", "adapter": "math"}


def test_an_adapter_may_be_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = folder(tmp_path / "in/llama", LLAMA, "model.safetensors")
    of_hub = adapter(tmp_path / "hub/models--some--math/snapshots/0123")
    arguments = ("--huggingface", source, "--adapter", of_hub, "--adapter", adapter(tmp_path / "else/code"))
    manifest, said = written(capsys, tmp_path / "out", *arguments)
    assert manifest["model"]["adapters"] == {
        "math": {"config": "0123/adapter_config.json", "weights": "0123/adapter_model.safetensors"},
        "code": {"config": "code/adapter_config.json", "weights": "code/adapter_model.safetensors"},
    }
    assert f"--root {source} --root {of_hub.parent} --root {tmp_path}/else " in said
    adapter(tmp_path / "other/code")
    said = failure(capsys, *map(str, arguments), "-o", tmp_path / "other")
    assert f"the build would read {tmp_path}/other/code/adapter_config.json in place of {tmp_path}/else/code" in said


def test_the_weights_of_a_gguf_file_are_read_by_the_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = folder(tmp_path / "llama", {**LLAMA, "dtype": "bfloat16"}, "q8.gguf")
    manifest, said = written(capsys, tmp_path / "one", "--huggingface", source)
    assert (manifest["model"]["weights"], manifest["model"]["dtype"]) == ("q8.gguf", "float32")
    assert 'data = [\n        "config.json",\n        "q8.gguf",\n    ]' in (tmp_path / "one/BUILD").read_text()
    (source / "q4.gguf").write_text("not read")
    assert "has several GGUF files: q4.gguf, q8.gguf" in failure(capsys, "--huggingface", source, "-o", tmp_path)
    manifest, said = written(capsys, tmp_path / "two", "--huggingface", source / "q4.gguf")
    assert manifest["model"]["weights"] == "q4.gguf"
    assert f"--root {source} " in said


def test_the_integers_of_a_packed_checkpoint_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {**LLAMA, "dtype": "float16", "quantization_config": {"quant_method": "gptq", "bits": 4}}
    source = folder(tmp_path / "llama", config, "model.safetensors")
    manifest, _ = written(capsys, tmp_path / "one", "--huggingface", source)
    assert manifest["defaults"]["quantize"] == {"torchao": [{"config": "packed"}]}
    assert manifest["model"]["dtype"] == "float32"
    assert (
        'data = [\n        "config.json",\n        "model.safetensors",\n    ]' in (tmp_path / "one/BUILD").read_text()
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "aqlm"}, "the checkpoint is packed by aqlm"),
        (
            {"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"},
            "by gptq with `checkpoint_format: marlin`",
        ),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "by awq with `version: gemv`"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"format": "marlin-24"}}},
            "by compressed-tensors with `format: marlin-24`",
        ),
    ],
)
def test_packed_weights_that_the_build_does_not_read_are_refused(
    config: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = folder(tmp_path / "llama", {**LLAMA, "quantization_config": config}, "model.safetensors")
    said = failure(capsys, "--huggingface", source, "-o", tmp_path / "out")
    assert message in said
    assert "take the checkpoint as it was before; these are read: awq, bitsandbytes, " in said
    assert not (tmp_path / "out").exists()


def test_weights_that_are_not_complete_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index, into = "model.safetensors.index.json", ("-o", tmp_path / "out")
    source = folder(tmp_path / "llama", LLAMA, "model-1-of-2.safetensors")
    said = failure(capsys, "--huggingface", source, *into)
    assert f"has model-1-of-2.safetensors, and neither model.safetensors nor {index}" in said
    shards = {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}
    (source / index).write_text(json.dumps({"weight_map": shards}))
    said = failure(capsys, "--huggingface", source, *into)
    assert f"{index} lists 1 of 2 files that are not there: model-2-of-2.safetensors" in said
    (source / "model-2-of-2.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0")
    said = failure(capsys, "--huggingface", source, *into)
    assert f"error: `{source}/model-2-of-2.safetensors` is a pointer of git-lfs, not the content itself" in said


def test_a_file_that_another_one_hides_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, into = folder(tmp_path / "llama", LLAMA), tmp_path / "out"
    into.mkdir()
    (into / "config.json").write_text("{}")
    said = failure(capsys, "--huggingface", source, "-o", into)
    assert f"the build would read {into}/config.json in place of {source}/config.json" in said


def test_the_template_of_a_chat_goes_with_the_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("tokenizer.model", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json", "vocab.json")
    source = folder(tmp_path / "one/llama", {**LLAMA, "eos_token_id": 1}, *names)
    manifest, _ = written(capsys, tmp_path / "one", "--huggingface", source)
    expected = ["tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"]
    assert manifest["tokenizer"] == [f"llama/{name}" for name in expected]
    (source / "tokenizer.json").write_text("not read")
    manifest, said = written(capsys, tmp_path / "two", "--huggingface", source)
    assert manifest["tokenizer"] == ["tokenizer.json", *expected[1:]]
    assert "llama.yaml --chat --root " in said
    (source / "chat_template.jinja").unlink()
    _, said = written(capsys, tmp_path / "three", "--huggingface", source)
    assert "llama.yaml 'Once upon a time' --root " in said
    (source / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    _, said = written(capsys, tmp_path / "four", "--huggingface", source)
    assert "llama.yaml --chat --root " in said


def test_a_folder_without_a_tokenizer_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = folder(tmp_path / "llama", {**LLAMA, "eos_token_id": 1}, "vocab.json", "tokenizer_config.json")
    assert main.main(["init", "--huggingface", str(source), "-o", str(tmp_path), "--no-check"]) == 0
    captured = capsys.readouterr()
    assert "note: The folder has no tokenizer that the runner reads: add tokenizer.json" in captured.err
    assert "generate" not in captured.out
    assert "tokenizer" not in validate.load(tmp_path / "llama.yaml").data


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({**LLAMA, "rope_theta": {"__float__": "Infinity"}}, "  max_length: 64   # tokens: as many as the model takes"),
        (
            {**LLAMA, "max_position_embeddings": 40960},
            "  max_length: 2048   # tokens: a guess; the model takes 40960",
        ),
        (
            {"architectures": ["BertModel"], "vocab_size": 9},
            "   # a guess: config.json has no `max_position_embeddings`",
        ),
        (
            {"architectures": ["ViTForMaskedImageModeling"], "num_channels": 3},
            "# pixel_values; a guess, because config.json has no `image_size`",
        ),
    ],
)
def test_a_guess_is_marked(
    config: dict[str, Any], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(capsys, tmp_path, "--huggingface", folder(tmp_path / "net", config))
    assert expected in (tmp_path / "net.yaml").read_text()


@pytest.mark.parametrize("config", [LLAMA, {"architectures": ["ViTModel"], "num_channels": 3}])
def test_the_commented_quantization_is_valid(
    config: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(capsys, tmp_path, "--huggingface", folder(tmp_path / "net", config))
    path = tmp_path / "net.yaml"
    path.write_text(path.read_text().replace("# quantize:", "quantize:"))
    assert "quantize" in validate.load(path).data["defaults"]


def _without_docstrings(source: str) -> str:
    """The other strings of a source."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    strings = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docstrings)
    return "\n".join(node.value for node in strings if isinstance(node.value, str))


def test_pages_have_their_names_in_the_menu_of_the_site() -> None:
    """Who has installed the driver has no `docs/`."""
    menu = re.findall(r"\[([^]]+)\]\(", (ROOT / "docs/pages.md").read_text())
    texts = {str(source): source.read_text() for source in (ROOT / "toolchain").glob("et*/**/*.py")}
    assert [name for name, text in texts.items() if re.search(r"docs/[\w-]+\.md", _without_docstrings(text))] == []
    named = {page for text in texts.values() for page in re.findall("the page `([^`]+)`", text)}
    assert len(named) > 9
    assert [page for page in named if not any(label.partition(":")[0] == page for label in menu)] == []


PATTERN = ["sliding", "sliding", "sliding", "full"]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"num_hidden_layers": 36, "vocab_size": 9, "max_window_layers": 36}, {"num_hidden_layers": 2}),
        ({"n_layer": 12, "n_head": 12}, {"n_layer": 2}),
        ({"num_hidden_layers": 2, "layer_types": ["full", "full"]}, {}),
        (
            {"num_hidden_layers": 8, "layer_types": PATTERN * 2, "heads": [1] * 8, "eos_token_id": [1, 2]},
            {"num_hidden_layers": 4, "layer_types": PATTERN, "heads": [1] * 4},
        ),
        (
            {"text_config": {"num_hidden_layers": 8}, "vision_config": {"num_hidden_layers": 27, "depth": 3}},
            {"text_config.num_hidden_layers": 2, "vision_config.num_hidden_layers": 2, "vision_config.depth": 2},
        ),
        ({"encoder_layers": 6, "decoder_layers": 6, "num_hidden_layers": 6}, dict.fromkeys(SEVERAL, 2)),
    ],
)
def test_a_trial_has_each_kind_of_layer(config: dict[str, Any], expected: dict[str, Any]) -> None:
    assert dict(trial.shortened(config)) == expected


def test_a_link_beside_the_manifest_is_the_name_of_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = folder(tmp_path / "hub/models--some--Llama-1B/snapshots/0123", LLAMA, "model.safetensors")
    (tmp_path / "Llama-1B").symlink_to(source)
    manifest, said = written(capsys, tmp_path, "--huggingface", tmp_path / "Llama-1B")
    assert (manifest["name"], manifest["model"]["weights"]) == ("llama_1b", "Llama-1B/model.safetensors")
    assert "--root" not in said


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (
            ["config.json", "model.safetensors", "pytorch_model.bin", "README.md", "model.fp16.safetensors"],
            ["config.json", "model.safetensors"],
        ),
        (
            ["pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json", "training_args.bin"],
            ["pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json"],
        ),
        (
            ["model-00001-of-00002.safetensors", "model.safetensors.index.json", "consolidated.safetensors"],
            ["model-00001-of-00002.safetensors", "model.safetensors.index.json"],
        ),
        (
            [
                "chat_template.jinja",
                "tokenizer.model",
                "original/tokenizer.model",
                "onnx/config.json",
                ".gitattributes",
            ],
            ["chat_template.jinja", "tokenizer.model"],
        ),
        (
            ["modules.json", "1_Pooling/config.json", "2_Dense/model.safetensors", "2_Dense/pytorch_model.bin"],
            ["1_Pooling/config.json", "2_Dense/model.safetensors", "modules.json"],
        ),
    ],
)
def test_only_what_a_build_needs_is_downloaded(names: list[str], expected: list[str]) -> None:
    assert hub.wanted(names) == expected


@pytest.mark.parametrize("reference", ["hub:one", "hub:a/b@", "hub:a/b/c", "hub:a/../b", "hub:a/b@x y"])
def test_a_reference_of_another_form_is_an_error(
    reference: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = failure(capsys, "--huggingface", reference, "-o", tmp_path)
    assert "expected hub:OWNER/NAME or hub:OWNER/NAME@REVISION" in said


def test_a_folder_in_the_place_of_the_link_is_kept(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with pytest.raises(InputError, match="is in the place of a link to a/b"):
        hub.link(hub.Snapshot(tmp_path, "a/b", "0123", "https://hub", {}), tmp_path)


def test_what_is_no_model_and_no_adapter_is_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, math = folder(tmp_path / "in/llama", LLAMA), adapter(tmp_path / "else/math")
    into = ("-o", tmp_path / "out")
    said = failure(capsys, "--huggingface", math, *into)
    assert "this is a LoRA adapter of `some/llama`, and not a model" in said
    assert f"`--adapter {math}`" in said
    other = adapter(source / "other", kind="IA3")
    said = failure(capsys, "--huggingface", source, "--adapter", other, *into)
    assert "adapter_config.json: not the configuration of a LoRA adapter" in said
    empty = adapter(source / "empty", "readme")
    assert "there is no adapter_model.safetensors" in failure(
        capsys, "--huggingface", source, "--adapter", empty, *into
    )
    (tmp_path / "single").mkdir()
    (tmp_path / "single/q8.gguf").write_text("not read")
    said = failure(capsys, "--huggingface", tmp_path / "single/q8.gguf", *into)
    assert "a GGUF file needs the configuration of its model" in said
    assert "`--adapter` goes with `--huggingface`" in failure(capsys, "--factory", "m:c", "--adapter", math, *into)


def test_a_folder_needs_no_torch_and_nothing_in_it_runs(tmp_path: Path) -> None:
    source = folder(tmp_path / "llama", {**LLAMA, "auto_map": {"AutoModelForCausalLM": "modeling.Net"}})
    (source / "modeling.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    script = (
        "import sys\nfrom etbuild.cli.main import main\nassert main(sys.argv[1:]) == 0\n"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)\n"
    )
    command = [sys.executable, "-c", script, "init", "--huggingface", str(source), "--no-check"]
    command += ["-o", str(tmp_path / "out")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "The folder has code of its own. It does not run" in done.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("hint", "longest"),
    [
        ("write {dim: source, max: 127}", "127"),
        ("write {dim: seq, min: 2, max: 300}; it is read in model.py:3", "300"),
        ("write {dim: source, min: 129, max: 255}", None),  # short texts would be refused
        ("write {dim: source, max: 512}", None),  # it is not shorter
        ("write {dim: source, multiple_of: 128, max: 256}", None),
        ("write `null` for `source`, which is always 16", None),
    ],
)
def test_init_tries_the_longest_text_that_an_error_proposes(hint: str, longest: str | None) -> None:
    _check_longest_text(hint, longest)


def test_init_reads_a_proposed_text_in_other_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_errors, "range_hint", lambda name, bounds: f"`{name}` is [{bounds[0]}, {bounds[1]}]")
    _check_longest_text(export_errors.range_hint("source", ("2", "127")), "127")
    _check_longest_text(export_errors.range_hint("source", ("3", "127")), None)


def _check_longest_text(hint: str, longest: str | None) -> None:
    model = ["huggingface:", "  task: seq2seq", "  max_source_length: 512   # tokens of the encoder: a guess"]
    first = First("net", model, [], "")
    problem = Problem("torch.export narrows `source`", ("methods", "encoder", "dynamic_shapes"), hint)
    found = trial._adapted(first, problem)
    if longest is None:
        assert found is None
    else:
        assert found is not None
        assert found.model[2] == f"  max_source_length: {longest}   # tokens of the encoder: a guess"
        assert found.remarks == [f"A text has at most {longest} tokens; a longer one fails: {problem.message}."]


@pytest.mark.parametrize(
    ("words", "sizes", "text"),
    [
        (("batch_size", "sequence_length", "7"), (1, 16, 7), 1),
        (("batch_size", "episode_length", "state_dim"), (1, 16, 5), None),
        (("batch_size", "num_channels", "prompt_height", "prompt_width"), (1, 4, 24, 32), None),
        (("batch_size", "config.state_dim"), (1, 5), None),
        (("batch_size", "a word of no key"), None, None),
    ],
)
def test_init_reads_a_shape_in_words(words: tuple[str, ...], sizes: tuple[int, ...] | None, text: int | None) -> None:
    config = {"state_dim": 5, "backbone_config": {"num_channels": 4, "image_size": [24, 32]}}
    documented = {"input_ids": ("int64", ("batch_size", "sequence_length")), "one": ("float32", words)}
    inputs = ClassInputs("input_ids", ("input_ids", "one"), False, documented=documented)
    found = known_inputs.of("Net", config, inputs).get("one")
    assert (found and found.sizes, found and found.text) == (sizes, text)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            ["  task: text-generation"],
            [
                "The model also reads images and sounds, and this program does not: `pixel_values`, `audio_codes` "
                "are left out."
            ],
        ),
        (["  task: zero-shot-image-classification"], []),
    ],
)
def test_init_names_what_it_leaves_out(lines: list[str], said: list[str]) -> None:
    names = ("input_ids", "pixel_values", "audio_codes", "attention_mask")
    inputs = ClassInputs("input_ids", names, True, given=names, kinds=("image", "audio", "text"))
    first = First("net", lines, [], "")
    left = left_out.names(first, inputs)
    assert [*left_out.remarks(left, first, inputs)] == said


def test_a_task_that_takes_tokens_only_is_not_tried_for_places_on_a_page() -> None:
    """The export would refuse it each time, and a note would call it better."""
    inputs = ClassInputs("input_ids", ("input_ids", "bbox"), False, given=("input_ids", "bbox"))
    methods = Methods([], ["  task: token-classification", "  max_source_length: 128"])
    first = next(other_methods.with_all_inputs(methods, "AnyForTokenClassification", {}, inputs))
    assert first.model == []
    assert [line.split(":")[0].strip() for line in first.lines[2:4]] == ["input_ids", "bbox"]
