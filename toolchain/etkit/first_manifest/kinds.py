"""The methods of a model of Hugging Face, for each kind of model."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from etbuild.manifest.tasks import IMAGE_TOWERS
from etkit.first_manifest.files import Files
from etkit.first_manifest.first import CALIBRATE, QUANTIZE

_LONGEST_CACHE = 2048  # tokens; the memory of a cache grows with it
_LONGEST_CALL = 128  # tokens; a longer prompt takes several calls
_LONGEST_TEXT = 512  # tokens; of the decoder and of the encoder of a model that has both
_SEQ2SEQ = ("bart", "m2m_100", "marian", "mbart", "mt5", "pegasus", "t5", "umt5")  # these are tried
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
_OTHER_ATTENTION = ("bloom", "deepseek_v2", "deepseek_v3", "falcon", "gemma2", "gpt_oss", "mpt")  # ExecuTorch lacks it
_WHISPER = "WhisperForConditionalGeneration"
_WRITERS = ("ForConditionalGeneration", "MTModel")  # the classes of encoders and decoders that write text


@dataclass(frozen=True)
class Methods:
    """The methods for a kind of models: their lines in the manifest, lines of `model`, and what goes with them."""

    lines: list[str]
    model: list[str] = field(default_factory=list)
    hint: str = QUANTIZE
    runner: str | None = None
    data: list[str] = field(default_factory=list)
    tokenizer: list[str] = field(default_factory=list)


def _number(config: dict[str, Any], default: int, *keys: str) -> int:
    """The first of some keys of a configuration that is a positive number."""
    values = [config.get(key) for key in keys]
    return next((each for each in values if type(each) is int and 0 < each < 1 << 31), default)


@dataclass(frozen=True)
class _TextTask:
    """A task of `model.huggingface` that writes text, which gets its methods without lines.

    Attributes:
        runner: ExecuTorch's runner for it.
        longest: The tokens of the cache at most.
        keys: The keys of the configuration that may have fewer.
        lines: Lines of `huggingface`, with `{length}` and so on.
    """

    runner: str
    longest: int
    keys: tuple[str, ...]
    lines: tuple[str, ...]


_TEXT_TASKS = {
    "text-generation": _TextTask(
        "executorch-llm/v1",
        _LONGEST_CACHE,
        ("max_position_embeddings", "n_positions"),
        ("cache: {{max_length: {length}, max_seq_length: {call}, kind: {kind}}}   # tokens in all, and in one call",),
    ),
    "seq2seq": _TextTask(
        "executorch-asr/v1",
        _LONGEST_TEXT,
        ("max_position_embeddings", "n_positions"),
        (
            "max_source_length: {length}   # tokens of the encoder",
            "cache: {{max_length: {length}}}   # tokens of the decoder",
        ),
    ),
    "image-text-to-text": _TextTask(
        "executorch-multimodal/v1",
        _LONGEST_CACHE,
        ("max_position_embeddings",),
        ("cache: {{max_length: {length}, kind: custom}}   # `max_seq_length` saves memory",),
    ),
    "speech-to-text": _TextTask(
        "executorch-asr/v1",
        _LONGEST_TEXT,
        ("max_target_positions",),
        ("cache: {{max_length: {length}}}   # tokens of the decoder",),
    ),
}


def _text(name: str, config: dict[str, Any], files: Files) -> Methods:
    """A model that writes text. It has a runner only if the files say which tokens end a text."""
    task, settings = _TEXT_TASKS[name], "generation_config.json"
    length = min(task.longest, _number(config, task.longest, *task.keys))
    kind = "static" if config.get("model_type") in _OTHER_ATTENTION else "custom"
    data = [files.named(settings)] if files.has(settings) else []
    model = [f"  task: {name}", *(f"  generation_config: {json.dumps(file)}" for file in data)]
    model += [f"  {line.format(length=length, call=min(_LONGEST_CALL, length), kind=kind)}" for line in task.lines]
    ends = {**config, **files.json(settings)}.get("eos_token_id")
    tokenizer = [files.named(file) for file in _TOKENIZER if files.has(file)]
    return Methods([], model, runner=None if ends is None else task.runner, data=data, tokenizer=tokenizer)


def _encoder(config: dict[str, Any]) -> Methods:
    length = _number(config, 512, "max_position_embeddings")
    if config.get("model_type") in ("roberta", "xlm-roberta", "camembert"):
        length -= 2  # their positions begin after that of the padding
    return Methods(
        [
            "forward:",
            f"  example_inputs: [{{shape: [1, {min(16, length)}], dtype: int64}}]   # input_ids",
            f"  dynamic_shapes: [[null, {{dim: seq, min: 2, max: {length}}}]]",
        ]
    )


def _image(config: dict[str, Any]) -> Methods:
    size = config.get("image_size")
    height, width = size if isinstance(size, list) and len(size) == 2 else (_number(config, 224, "image_size"),) * 2
    channels = _number(config, 3, "num_channels")
    sizes = [each if type(each) is int and 0 < each < 1 << 31 else 224 for each in (height, width)]
    example = f"{{shape: [1, {channels}, {sizes[0]}, {sizes[1]}]}}"
    return Methods(["forward:", f"  example_inputs: [{example}]   # pixel_values"], hint=CALIBRATE)


def _sees_images(config: dict[str, Any]) -> bool:
    """Whether a model is one of those that `task: image-text-to-text` knows."""
    text, vision = config.get("text_config"), config.get("vision_config")
    towers = IMAGE_TOWERS.get(str(config.get("model_type")), ())
    if not (isinstance(text, dict) and isinstance(vision, dict) and towers):
        return False
    return vision.get("model_type", towers[0]) in towers  # the first is transformers' default


def methods_of_kind(kind: str, config: dict[str, Any], files: Files) -> Methods | None:
    """The methods of a model of this class. None if the class is not known here, such as one with several inputs."""
    model_type = config.get("model_type")
    if "text_config" not in config and kind.endswith(("ForCausalLM", "LMHeadModel")):
        return _text("text-generation", config, files)
    if model_type == "whisper" and kind == _WHISPER:
        return _text("speech-to-text", config, files)
    if _sees_images(config):
        return _text("image-text-to-text", {**config, **config["text_config"]}, files)
    if model_type in _SEQ2SEQ and kind.endswith(_WRITERS):
        return _text("seq2seq", config, files)
    if config.get("is_encoder_decoder") is True or any(key.endswith("_config") for key in config):
        return None
    if "conv_dim" in config and "feat_proj_dropout" in config:
        lines = ["forward:", "  example_inputs: [{shape: [1, 16000]}]   # input_values: one second at 16 kHz"]
        return Methods(lines, hint=CALIBRATE)
    if "vocab_size" not in config and "num_channels" in config:
        return _image(config)
    return _encoder(config) if "vocab_size" in config and "image_size" not in config else None
