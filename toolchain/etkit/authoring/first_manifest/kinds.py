"""The methods of a model of Hugging Face, for each kind of model."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from etkit.authoring.first_manifest import image_size, sentence_transformers, sound_length
from etkit.authoring.first_manifest.files import Files, positive
from etkit.authoring.first_manifest.first import CALIBRATE, QUANTIZE
from etkit.running.generation.tokenizer_files import RUNNERS, SETTINGS, have_template
from etplugins.transformers.families import family, refusal
from etplugins.transformers.tasks import TASKS

_LONGEST_CACHE = 2048  # tokens; the memory of a cache grows with it
_LONGEST_CALL = 128  # tokens; a longer prompt takes several calls
_LONGEST_TEXT = 512  # tokens; of an encoder, and of the decoder of a model that has both
_CHANNELS, _IMAGE = 3, 224  # channels and size of an image, if the configuration does not say them
_SPOKEN = 256  # tokens of a text that is spoken: half of them are blanks between letters
_TOWERS = ("text_config", "vision_config")
_WRITERS = ("ForConditionalGeneration", "MTModel")  # the ends of names of encoder-decoder classes that write text


@dataclass(frozen=True)
class Methods:
    """The methods for a kind of models: their lines in the manifest, lines of `model`, and other facts. `model_class`
    is the class if it is not that of the configuration; `weights_of_children` has files with the weights of children of
    the model, each with the name of its child."""

    lines: list[str]
    model: list[str] = field(default_factory=list)
    hint: str = QUANTIZE
    runner: str | None = None
    data: list[str] = field(default_factory=list)
    tokenizer: list[str] = field(default_factory=list)
    chats: bool = False
    remarks: list[str] = field(default_factory=list)
    model_class: str | None = None
    weights_of_children: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _TextTask:
    """A task of `model.huggingface` that writes text. Its methods need no lines.

    Attributes:
        runner: ExecuTorch's runner for it.
        longest: The largest number of tokens in the cache.
        keys: The keys of the configuration that may limit them further.
        lines: Lines of `huggingface`, with fields such as `{length}`.
    """

    runner: str
    longest: int
    keys: tuple[str, ...]
    lines: tuple[str, ...]


_TEXT_TASKS = {
    "text-generation": _TextTask(
        "executorch-llm/v1",
        _LONGEST_CACHE,
        ("max_position_embeddings", "n_positions", "max_seq_len", "context_length"),
        (
            "cache:",
            "  max_length: {length}   # tokens: {why}",
            "  max_seq_length: {call}   # tokens of one call: a guess",
            "  kind: custom",
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
        ("cache:", "  max_length: {length}   # tokens: {why}; `max_seq_length` saves memory", "  kind: custom"),
    ),
    "image-to-text": _TextTask(
        "executorch-asr/v1",
        _LONGEST_TEXT,
        ("max_position_embeddings", "n_positions"),
        ("cache: {{max_length: {length}}}   # tokens of the decoder: {why}",),
    ),
    "speech-to-text": _TextTask(
        "executorch-asr/v1",
        _LONGEST_TEXT,
        ("max_target_positions", "max_position_embeddings"),
        ("cache: {{max_length: {length}}}   # tokens of the decoder: {why}",),
    ),
}


def of_text_task(name: str, config: dict[str, Any], files: Files) -> Methods:
    """A model that writes text. It has a runner only if the files say which tokens end a text."""
    task, settings = _TEXT_TASKS[name], "generation_config.json"
    known = positive(*map(config.get, task.keys))
    length = min(task.longest, known or task.longest)
    why = (
        "as many as the model takes" if length == known else f"a guess; the model takes {known or 'an unknown number'}"
    )
    data = [files.named(settings)] if files.has(settings) else []
    values = {"length": length, "call": min(_LONGEST_CALL, length), "why": why}
    sound, lines = _of_encoder(config, files) if name == "speech-to-text" else ([], [])
    model = [f"  task: {name}", *sound]
    model += [*(f"  generation_config: {json.dumps(file)}" for file in data)]
    model += [f"  {line.format(**values)}" for line in task.lines]
    ends = {**config, **files.json(settings)}.get("eos_token_id")
    runner = None if ends is None else task.runner
    tokenizer, remarks = _tokenizer(files, runner)
    chats = have_template(files.folder / file for file in SETTINGS if files.has(file))
    if name == "image-text-to-text":
        lines = _methods_with_image(config, files, length)
    return Methods(lines, model, runner=runner, data=data, tokenizer=tokenizer, chats=chats, remarks=remarks)


def _methods_with_image(config: dict[str, Any], files: Files, length: int) -> list[str]:
    """The lines of the methods of a model that takes images of many sizes; empty for others."""
    side = image_size.of_patches(config, files.json("preprocessor_config.json"), length)
    if side is None:
        return []
    shape = [1, _CHANNELS, side, side]
    return [
        "vision_encoder:",
        f"  example_inputs: [{{shape: {shape}}}]   # an image: a guess, the model takes other sizes too",
        "token_embedding: {}",
        "text_decoder: {}",
    ]


def _tokenizer(files: Files, runner: str | None) -> tuple[list[str], list[str]]:
    """The files of the tokenizer with its chat template, and remarks about them for the user."""
    read = next((file for file in RUNNERS if files.has(file)), None)
    if read is None and runner == _TEXT_TASKS["text-generation"].runner:
        return [], [
            "The folder has no tokenizer that the runner reads: add tokenizer.json, and name it as `tokenizer`."
        ]
    return [files.named(file) for file in (read, *SETTINGS) if file and files.has(file)], []


def longest_text(config: dict[str, Any]) -> int:
    """The largest number of tokens that an encoder takes."""
    length = positive(config.get("max_position_embeddings")) or _LONGEST_TEXT
    return length - family(config.get("model_type")).reserved_positions


def _embedder(kind: str, found: sentence_transformers.Embedder, config: dict[str, Any], files: Files) -> Methods:
    """A model of sentence-transformers. Its checkpoint has no head, even if the class in the configuration has one."""
    length = min(_LONGEST_TEXT, longest_text(config), found.longest or _LONGEST_TEXT)
    lines = [
        "  task: feature-extraction",
        f"  pooling: {found.pooling}",
        *(["  dense:"] if found.dense else []),
        *(f"    - {json.dumps(layer.entry)}" for layer in found.dense),
        *(["  normalize: true"] if found.normalize else []),
        f"  max_source_length: {length}   # tokens of a text",
    ]
    tokenizer, _ = _tokenizer(files, None)
    model_class = kind if kind.endswith("EncoderModel") else "AutoModel"
    remarks = [found.remark] if found.remark else []
    of_layers = {files.named(layer.weights): f"dense.{index}" for index, layer in enumerate(found.dense)}
    return Methods(
        [], lines, tokenizer=tokenizer, model_class=model_class, remarks=remarks, weights_of_children=of_layers
    )


_PAIRS, _PAIR = ("question-answering", "text-ranking"), ("input_ids", "token_type_ids")
"""The tasks that read two texts, and the inputs of a model that tells their tokens apart."""
_LONGEST_SOUND = "  max_source_length: {longest}   # {unit} of ten seconds: a guess"
_FROM = "# from a tenth of a second: a guess"


def _of_encoder(config: dict[str, Any], files: Files) -> tuple[list[str], list[str]]:
    """The line of `huggingface` with the longest sound of an encoder with a decoder, and the lines of `methods` with
    the ranges of both. Without ranges for an encoder whose frames are not known, and empty for one whose configuration
    says its length."""
    found = sound_length.of(config, files.json("preprocessor_config.json"))
    if found is None:
        return [], []
    line = _LONGEST_SOUND.format(longest=found.longest, unit=found.unit)
    if found.frame is None:  # then each sound has the longest length
        return [line], []
    frames = f"{{dim: frames, min: 1, max: {-(-found.longest // found.frame)}}}"
    return [line], [
        "encoder:",
        f"  dynamic_shapes: [[null, {_range(found)}]]   {_FROM}",
        "text_decoder:",
        f"  dynamic_shapes: [null, [null, {frames}, null], null]   # vectors of the encoder",
    ]


def _range(length: sound_length.Length) -> str:
    """The lengths of a sound, as a dynamic dimension."""
    step = "" if length.step == 1 else f"multiple_of: {length.step}, "
    return f"{{dim: {length.unit}, {step}min: {length.shortest}, max: {length.longest}}}"


def _of_sound(name: str, config: dict[str, Any], files: Files) -> Methods | None:
    """A model that takes a sound in one call, of any length up to the longest one. None if no length is known."""
    found = sound_length.of(config, files.json("preprocessor_config.json"))
    if found is None:
        return None
    model = [f"  task: {name}", _LONGEST_SOUND.format(longest=found.longest, unit=found.unit)]
    shape = f"[null, {_range(found)}]" if found.is_waveform else f"[null, {_range(found)}, null]"
    lines = ["forward:", f"  dynamic_shapes: [{shape}]   {_FROM}"]
    tokenizer, _ = _tokenizer(files, None)
    words = [files.named(file) for file in ("vocab.json",) if files.has(file)]
    return Methods(lines, model, hint=CALIBRATE, tokenizer=[*tokenizer, *words])


def single_call(name: str, config: dict[str, Any], files: Files) -> Methods | None:
    """A model of a task that takes all of its input in one call. None if the length of a sound is not known."""
    model, lines = [f"  task: {name}"], []
    if TASKS[name].takes == "sound":
        return _of_sound(name, config, files)
    if TASKS[name].takes == "tokens":
        length = min(_LONGEST_TEXT, longest_text(config))
        model.append(f"  max_source_length: {length}   # tokens of a text")
        tokenizer, _ = _tokenizer(files, None)
        return Methods(_of_pairs(name, config, length), model, tokenizer=tokenizer)
    if name == "image-feature-extraction":
        model.append("  pooling: model")
    if image_size.of_config(config) is None and TASKS[name].takes == "image":
        processor = files.json("preprocessor_config.json")
        of_backbone = None if processor else image_size.of_backbone(config)
        height, width = of_backbone or image_size.of_processor(processor)
        shape = [1, image_size.channels(config), height, width]
        lines = [
            "forward:",
            f"  example_inputs: [{{shape: {shape}}}]   # pixel_values: the model takes other sizes too",
        ]
    return Methods(lines, model, hint=CALIBRATE)


def _of_pairs(name: str, config: dict[str, Any], length: int) -> list[str]:
    """The lines of `methods` for a task whose texts are pairs, if the model reads which text a token is of."""
    if name not in _PAIRS or (positive(config.get("type_vocab_size")) or 1) < len(_PAIR):
        return []
    tokens = f"{{shape: [1, {min(16, length)}], dtype: int64}}"
    dim = f"[null, {{dim: seq, min: 2, max: {length}}}]"
    return [
        *("forward:", "  example_kwargs:", *(f"    {each}: {tokens}" for each in _PAIR)),
        *("  dynamic_kwargs_shapes:", *(f"    {each}: {dim}" for each in _PAIR)),
    ]


def of_texts_and_images(task: str, config: dict[str, Any]) -> Methods:
    """A task that compares texts with an image.

    Args:
        task: The name of the task.
        config: The content of `config.json`.
    """
    text = config.get("text_config")
    length = longest_text(text if isinstance(text, dict) else {})
    return Methods([], [f"  task: {task}", f"  max_source_length: {length}   # tokens of a text"], hint=CALIBRATE)


def _task_of(kind: str, config: dict[str, Any]) -> str | None:
    """The task with one call for a class of models: `BertForTokenClassification` is one of
    `AutoModelForTokenClassification`, and `Wav2Vec2ForSequenceClassification` one of
    `AutoModelForAudioClassification`. None if a decoder of text follows an encoder: it needs other tokens."""
    if kind.endswith("ForSequenceClassification"):
        if sound_length.of(config, {}) is not None:
            return "audio-classification"
        labels = config.get("id2label")
        if isinstance(labels, dict) and len(labels) == 1 and config.get("is_encoder_decoder") is not True:
            return "text-ranking"  # one score says how well two texts fit
    for name, task in TASKS.items():
        head = task.model_class.removeprefix("AutoModel")
        if task.outputs and head and kind.endswith(head):
            return name if task.takes != "tokens" or config.get("is_encoder_decoder") is not True else None
    return None


def _encoder(config: dict[str, Any]) -> Methods:
    length = longest_text(config)
    known = positive(config.get("max_position_embeddings"))
    guess = "" if known else "   # a guess: config.json has no `max_position_embeddings`"
    return Methods(
        [
            "forward:",
            f"  example_inputs: [{{shape: [1, {min(16, length)}], dtype: int64}}]   # input_ids",
            f"  dynamic_shapes: [[null, {{dim: seq, min: 2, max: {length}}}]]{guess}",
        ]
    )


def _image(config: dict[str, Any]) -> Methods:
    found = image_size.of_config(config)
    values = {"num_channels": positive(config.get("num_channels")), "image_size": found}
    missing = " and ".join(f"`{key}`" for key, value in values.items() if value is None)
    guess = f"; a guess, because config.json has no {missing}" if missing else ""
    shape = [1, values["num_channels"] or _CHANNELS, *(found or (_IMAGE, _IMAGE))]
    return Methods(["forward:", f"  example_inputs: [{{shape: {shape}}}]   # pixel_values{guess}"], hint=CALIBRATE)


def _sees_images(config: dict[str, Any]) -> bool:
    """Whether a model is one of those that `task: image-text-to-text` knows. Older configurations, such as those of
    Qwen2.5-VL, have the keys of the decoder beside `vision_config`."""
    text, vision = config.get("text_config", config), config.get("vision_config")
    return isinstance(text, dict) and isinstance(vision, dict) and _refusal(config) is None


def _refusal(config: dict[str, Any]) -> tuple[str, str] | None:
    """Why `task: image-text-to-text` does not take a model with a tower for images."""
    return refusal(str(config.get("model_type")), config["vision_config"].get("model_type"))


def why_unknown(config: dict[str, Any]) -> str:
    """Why no methods are known for a model for images and text. Empty for others.

    Args:
        config: The configuration of the model.
    """
    both = all(isinstance(config.get(key), dict) for key in _TOWERS)
    found = _refusal(config) if both else None
    return "" if found is None else f": of `task: image-text-to-text`, {found[0]}; known: {found[1]}"


def methods_of_kind(kind: str, config: dict[str, Any], files: Files) -> Methods | None:
    """The methods of a model of this class. None if the class is not known here, such as one with several inputs."""
    found = sentence_transformers.read(files.folder)
    if found is not None:
        return _embedder(kind, found, config, files)
    if kind.endswith("ForObjectDetection") and all(isinstance(config.get(key), dict) for key in _TOWERS):
        return of_texts_and_images("zero-shot-object-detection", config)
    if {"speaking_rate", "sampling_rate"} <= config.keys():
        model = ["  task: text-to-speech", f"  max_source_length: {_SPOKEN}   # tokens of a text: a guess"]
        return Methods([], model, hint=CALIBRATE)
    task = _task_of(kind, config)
    if task is not None:
        return single_call(task, config, files)
    if "text_config" not in config and kind.endswith(("ForCausalLM", "LMHeadModel")):
        return of_text_task("text-generation", config, files)
    if _sees_images(config):
        return of_text_task("image-text-to-text", {**config, **config.get("text_config", {})}, files)
    writes = family(config.get("model_type")).writes
    if writes is not None and kind.endswith(_WRITERS):
        return of_text_task(writes, config, files)
    if config.get("is_encoder_decoder") is True or any(
        key.endswith("_config") and key != "quantization_config" and config[key] is not None for key in config
    ):
        return None
    if "conv_dim" in config and "feat_proj_dropout" in config:
        lines = ["forward:", "  example_inputs: [{shape: [1, 16000]}]   # input_values: one second at 16 kHz (a guess)"]
        return Methods(lines, hint=CALIBRATE)
    if "vocab_size" not in config and "num_channels" in config:
        return single_call("image-feature-extraction", config, files) if kind.endswith("Model") else _image(config)
    return _encoder(config) if "vocab_size" in config and "image_size" not in config else None
