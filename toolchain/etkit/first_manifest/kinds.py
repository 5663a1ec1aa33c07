"""The methods of a model of Hugging Face, for each kind of model."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from etbuild.manifest.tasks import IMAGE_TOWERS
from etkit.first_manifest.files import Files
from etkit.first_manifest.first import CALIBRATE, QUANTIZE
from etkit.generation.tokenizer_files import RUNNERS, SETTINGS, have_template

_LONGEST_CACHE = 2048  # tokens; the memory of a cache grows with it
_LONGEST_CALL = 128  # tokens; a longer prompt takes several calls
_LONGEST_TEXT = 512  # tokens; of the decoder and of the encoder of a model that has both
_SEQ2SEQ = ("bart", "m2m_100", "marian", "mbart", "mt5", "pegasus", "t5", "umt5")  # these are tried
_CHANNELS, _IMAGE = 3, 224  # of an image, if the configuration does not say it
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
    chats: bool = False
    remarks: list[str] = field(default_factory=list)


def _number(config: dict[str, Any], *keys: str) -> int | None:
    """The first of some keys of a configuration that is a positive number; None if there is none."""
    return next((found for key in keys if (found := _positive(config.get(key)))), None)


def _positive(value: Any) -> int | None:
    return value if type(value) is int and 0 < value < 1 << 31 else None


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
        (
            "cache:",
            "  max_length: {length}   # tokens: {why}",
            "  max_seq_length: {call}   # tokens of one call: a guess",
            "  kind: {kind}",
        ),
    ),
    "seq2seq": _TextTask(
        "executorch-asr/v1",
        _LONGEST_TEXT,
        ("max_position_embeddings", "n_positions"),
        (
            "max_source_length: {length}   # tokens of the encoder: {why}",
            "cache: {{max_length: {length}}}   # tokens of the decoder: {why}",
        ),
    ),
    "image-text-to-text": _TextTask(
        "executorch-multimodal/v1",
        _LONGEST_CACHE,
        ("max_position_embeddings",),
        ("cache: {{max_length: {length}, kind: custom}}   # tokens: {why}; `max_seq_length` saves memory",),
    ),
    "speech-to-text": _TextTask(
        "executorch-asr/v1",
        _LONGEST_TEXT,
        ("max_target_positions",),
        ("cache: {{max_length: {length}}}   # tokens of the decoder: {why}",),
    ),
}


def _text(name: str, config: dict[str, Any], files: Files) -> Methods:
    """A model that writes text. It has a runner only if the files say which tokens end a text."""
    task, settings = _TEXT_TASKS[name], "generation_config.json"
    known = _number(config, *task.keys)
    length = min(task.longest, known or task.longest)
    why = (
        "as many as the model takes" if length == known else f"a guess; the model takes {known or 'an unknown number'}"
    )
    kind = "static" if config.get("model_type") in _OTHER_ATTENTION else "custom"
    data = [files.named(settings)] if files.has(settings) else []
    values = {"length": length, "call": min(_LONGEST_CALL, length), "kind": kind, "why": why}
    model = [f"  task: {name}", *(f"  generation_config: {json.dumps(file)}" for file in data)]
    model += [f"  {line.format(**values)}" for line in task.lines]
    ends = {**config, **files.json(settings)}.get("eos_token_id")
    runner = None if ends is None else task.runner
    tokenizer, remarks = _tokenizer(files, runner)
    chats = have_template(files.folder / file for file in SETTINGS if files.has(file))
    return Methods([], model, runner=runner, data=data, tokenizer=tokenizer, chats=chats, remarks=remarks)


def _tokenizer(files: Files, runner: str | None) -> tuple[list[str], list[str]]:
    """The files of the tokenizer with its chat template, and what the user should know about it."""
    read = next((file for file in RUNNERS if files.has(file)), None)
    if read is None and runner == _TEXT_TASKS["text-generation"].runner:
        return [], [
            "The folder has no tokenizer that the runner reads: add tokenizer.json, and name it as `tokenizer`."
        ]
    return [files.named(file) for file in (read, *SETTINGS) if file and files.has(file)], []


def _encoder(config: dict[str, Any]) -> Methods:
    known = _number(config, "max_position_embeddings")
    length = known or _LONGEST_TEXT
    if config.get("model_type") in ("roberta", "xlm-roberta", "camembert"):
        length -= 2  # their positions begin after that of the padding
    guess = "" if known else "   # a guess: config.json has no `max_position_embeddings`"
    return Methods(
        [
            "forward:",
            f"  example_inputs: [{{shape: [1, {min(16, length)}], dtype: int64}}]   # input_ids",
            f"  dynamic_shapes: [[null, {{dim: seq, min: 2, max: {length}}}]]{guess}",
        ]
    )


def _image(config: dict[str, Any]) -> Methods:
    size = config.get("image_size")
    sizes = [_positive(each) for each in (size if isinstance(size, list) and len(size) == 2 else (size, size))]
    values = {"num_channels": _number(config, "num_channels"), "image_size": sizes[0] and sizes[1]}
    missing = " and ".join(f"`{key}`" for key, value in values.items() if value is None)
    guess = f"; a guess, because config.json has no {missing}" if missing else ""
    shape = [1, values["num_channels"] or _CHANNELS, *(each or _IMAGE for each in sizes)]
    return Methods(["forward:", f"  example_inputs: [{{shape: {shape}}}]   # pixel_values{guess}"], hint=CALIBRATE)


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
    if config.get("is_encoder_decoder") is True or any(
        key.endswith("_config") and key != "quantization_config" for key in config
    ):
        return None
    if "conv_dim" in config and "feat_proj_dropout" in config:
        lines = ["forward:", "  example_inputs: [{shape: [1, 16000]}]   # input_values: one second at 16 kHz (a guess)"]
        return Methods(lines, hint=CALIBRATE)
    if "vocab_size" not in config and "num_channels" in config:
        return _image(config)
    return _encoder(config) if "vocab_size" in config and "image_size" not in config else None
