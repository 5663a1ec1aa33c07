"""Further methods for a class of Hugging Face, which `etbuild init` tries if those of its kind cannot be built.

They follow from the inputs of the class: its tasks first, then its own `forward`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from etkit.authoring.first_manifest import image_size
from etkit.authoring.first_manifest.files import Files, positive
from etkit.authoring.first_manifest.first import CALIBRATE, QUANTIZE
from etkit.authoring.first_manifest.kinds import Methods, longest_text, of_text_task, of_texts_and_images, single_call
from etplugins.transformers.class_inputs import ClassInputs
from etplugins.transformers.tasks import TASKS

_TAKES = {"input_ids": "tokens", "pixel_values": "image", "input_values": "sound", "input_features": "sound"}
_WRITERS = {"tokens": "seq2seq", "sound": "speech-to-text", "image": "image-to-text"}
"""The task of a class with an encoder and a decoder of text, by what the encoder takes."""
_RATE = 16000
_NESTED = ("text_config", "vision_config")
_TEXT, _CHOICES, _CHANNELS = 16, 2, 3
_FILLED = 128  # tokens of a text that is filled up
_UNKNOWN = ("entity_ids", "grid_thw", "patches", "pronunciation", "shape_ids", "spatial_", "visual_", "xpath_")
"""Parts of the names of inputs without which a model would compute with zeros, and whose shape is not known here."""
_OF_IMAGE = "spatial_shapes"  # the task of two towers makes it of an image
_FROM_CLASS = "an input of the class: a guess"
STEPS_OF_LOOP = (
    "write a factory with a method for one step of this loop, which takes its random numbers as an input, and run the "
    "loop in your application: see the page `Methods and inputs`"
)
"""What to write for a class that makes its results in a loop of its own."""
_PAIR = ["input_ids", "decoder_input_ids"]
_OF_DECODER = re.compile(r"decoder_input_(?!ids)\w+")
_AGAIN = "The decoder has no cache: each call computes all tokens again, and returns their scores first."


def of(kind: str, config: dict[str, Any], files: Files, inputs: ClassInputs) -> Iterator[Methods]:
    """Yields methods for a class, the most useful first.

    Args:
        kind: The name of the class.
        config: The content of `config.json`.
        files: The files of the folder.
        inputs: The inputs of the class.
    """
    takes = _TAKES.get(inputs.main)
    if _written(inputs):
        return
    if inputs.generates and "decoder_input_ids" in inputs.names and takes in _WRITERS:
        nested = config.get("decoder")  # of a pair of models
        yield of_text_task(_WRITERS[takes], {**(nested if isinstance(nested, dict) else {}), **config}, files)
    elif inputs.generates and takes == "tokens" and not _others(inputs):
        yield of_text_task("text-generation", config, files)
    elif inputs.generates and takes == "image" and "input_ids" in inputs.names:  # it may be a pair of models
        text = config.get("text_config")
        longest = {key: text[key] for key in ("max_position_embeddings",) if isinstance(text, dict) and key in text}
        yield of_text_task("image-to-text", {**config, **longest}, files)
    else:
        yield from _of_parts(kind, config, inputs)
        for name, task in TASKS.items():
            head = task.model_class.removeprefix("AutoModel")
            if task.outputs and head and kind.endswith(head) and task.takes == takes:
                methods = single_call(name, config, files)
                if methods is not None:
                    yield _with_needed(methods, _shapes(kind, config), inputs)
    yield from _own_forward(kind, config, inputs)


def why_unknown(kind: str, config: dict[str, Any], inputs: ClassInputs) -> str:
    """Why no methods are known for a class, as the end of a sentence; empty if its inputs are not the reason.

    Args:
        kind: The name of the class.
        config: The content of `config.json`.
        inputs: The inputs of the class.
    """
    if written := _written(inputs):
        return f": its decoder takes `{written[0]}` in place of tokens, in a loop of its own, `generate`"
    if inputs.loops:
        return ": its results come from a loop of its own, `generate`"
    known, others = _shapes(kind, config), [each for each in inputs.needed if each != inputs.main]
    lacking = [each for each in (*others, *_unknown(inputs), inputs.main) if each not in known]
    return f": it takes `{lacking[0]}`, whose shape is not known" if lacking else ""


def _written(inputs: ClassInputs) -> list[str]:
    """What a decoder that writes something else than tokens takes, such as frames of a sound."""
    return [each for each in inputs.names if _OF_DECODER.fullmatch(each)]


def _unknown(inputs: ClassInputs) -> list[str]:
    return [each for each in inputs.names if any(part in each for part in _UNKNOWN)]


def _with_needed(methods: Methods, known: dict[str, str], inputs: ClassInputs) -> Methods:
    """The methods of a task with one input, for a class that needs more: with all, if their shapes are known."""
    if len(inputs.needed) < 2 or any(each not in known for each in inputs.needed):
        return methods
    entries = [f"    {name}: {{{known[name]}}}   # {_FROM_CLASS}" for name in inputs.needed]
    return replace(methods, lines=["forward:", "  example_kwargs:", *entries])


def _of_parts(kind: str, config: dict[str, Any], inputs: ClassInputs) -> Iterator[Methods]:
    """The methods of a class that has more than one, or whose input is a time series."""
    if "audio_codes" in inputs.decodes:
        samples = positive(config.get("sampling_rate")) or _RATE
        model = ["  task: audio-codec", f"  max_source_length: {samples}   # samples: one second"]
        yield Methods([], model, hint=CALIBRATE)
    elif {"image_embeddings", "input_points"} <= {*inputs.names}:
        yield Methods([], ["  task: mask-generation"], hint=CALIBRATE)
    elif {"input_ids", "pixel_values"} <= {*inputs.names} and {*_unknown(inputs)} <= {_OF_IMAGE}:
        yield of_texts_and_images("zero-shot-image-classification", config)
    elif inputs.main == "past_values" and kind.endswith("ForPrediction") and "past_time_features" not in inputs.names:
        yield Methods([], ["  task: time-series-prediction"], hint=CALIBRATE)


def _own_forward(kind: str, config: dict[str, Any], inputs: ClassInputs) -> Iterator[Methods]:
    """The class's own `forward`, without a task and without a cache. Nothing for a class with inputs of an unknown
    shape, and for one that writes text about an image or a sound: it reads them in a loop of its own."""
    known = _shapes(kind, config)
    names = [inputs.main, *_others(inputs), *(each for each in ("decoder_input_ids",) if each in inputs.names)]
    names += [each for each in inputs.needed if each not in names]
    writes_alone = inputs.generates and len(names) > 1 and names != _PAIR
    if any(each not in known for each in names) or _unknown(inputs) or writes_alone:
        return
    length, hint = longest_text(config), QUANTIZE if inputs.main == "input_ids" else CALIBRATE
    entries = ["  example_kwargs:", *(f"    {name}: {{{known[name]}}}   # {_FROM_CLASS}" for name in names)]
    if names == _PAIR and inputs.generates:
        dims = zip(names, ("source", "target"), strict=True)
        ranges = [f"    {name}: [null, {{dim: {dim}, min: 2, max: {length}}}]" for name, dim in dims]
        yield Methods(["forward:", *entries, "  dynamic_kwargs_shapes:", *ranges], hint=hint, remarks=[_AGAIN])
        yield _of_filled_texts(inputs, length, hint)
    elif names == ["input_ids"] and not kind.endswith("ForMultipleChoice"):
        lines = [
            f"  example_inputs: [{{shape: [1, {min(_TEXT, length)}], dtype: int64}}]   # input_ids",
            f"  dynamic_shapes: [[null, {{dim: seq, min: 2, max: {length}}}]]",
        ]
        yield Methods(["forward:", *lines], hint=hint)
    else:
        yield from _with_mask(["forward:", *entries], known, names, inputs, hint)


def _with_mask(
    lines: list[str], known: dict[str, str], names: list[str], inputs: ClassInputs, hint: str
) -> Iterator[Methods]:
    """Methods whose text has one length, with a mask of what fills up a shorter one, and then without it."""
    if {"input_ids", "attention_mask"} <= {*inputs.names} and "input_ids" in names:
        mask = f"    attention_mask: {{{known['input_ids']}, fill: ones}}   # 0 for what fills up a text"
        yield Methods([*lines, mask], hint=hint)
    yield Methods(lines, hint=hint)


def _of_filled_texts(inputs: ClassInputs, length: int, hint: str) -> Methods:
    """The class's own `forward` for texts of one length, with a mask of what fills up a shorter one. Tokens of the
    decoder need none: they do not see those after them."""
    count = min(_FILLED, length)
    tokens = f"{{shape: [1, {count}], dtype: int64}}"
    mask = [f"    attention_mask: {tokens[:-1]}, fill: ones}}"] if "attention_mask" in inputs.names else []
    lines = ["forward:", "  example_kwargs:", f"    input_ids: {tokens}", *mask, f"    decoder_input_ids: {tokens}"]
    remark = f"Each text has {count} tokens; `attention_mask` is 0 for those that fill it up."
    return Methods(lines, hint=hint, remarks=[_AGAIN, *([remark] if mask else [])])


def _others(inputs: ClassInputs) -> list[str]:
    """The inputs of a class beside its main one that hold an image, a sound, or places of words on a page."""
    wanted = ("input_ids", "bbox", "image", "pixel_values", "input_values", "input_features")
    return [each for each in wanted if each in inputs.names and each != inputs.main]


def _shapes(kind: str, config: dict[str, Any]) -> dict[str, str]:
    """The shape and dtype of each input that is known, as the items of a mapping in YAML."""
    text, vision = ({**config, **(each if isinstance(each := config.get(key), dict) else {})} for key in _NESTED)
    tokens = min(_TEXT, longest_text(text))
    height, width = image_size.of_config(config) or image_size.of_processor({})
    channels = positive(vision.get("num_channels")) or _CHANNELS
    frames = positive(config.get("num_frames"))
    image = [1, *([frames] if frames else []), channels, height, width]
    choices = [_CHOICES] if kind.endswith("ForMultipleChoice") else []
    found = {
        "input_ids": f"shape: {json.dumps([1, *choices, tokens])}, dtype: int64",
        "decoder_input_ids": f"shape: {json.dumps([1, tokens])}, dtype: int64",
        "bbox": f"shape: {json.dumps([1, tokens, 4])}, dtype: int64",
        "pixel_values": f"shape: {json.dumps(image)}",
        "image": f"shape: {json.dumps(image)}",
        "task_inputs": f"shape: [1, {positive(config.get('task_seq_len')) or _TEXT}], dtype: int64",
        "input_values": "shape: [1, 16000]",
    }
    bins, length = positive(config.get("num_mel_bins")), positive(config.get("max_length"))
    if bins and length:  # a spectrogram, such as that of AST
        found["input_values"] = f"shape: {json.dumps([1, length, bins])}"
    past, count = positive(config.get("context_length")), positive(config.get("num_input_channels"))
    if past and count:
        found["past_values"] = f"shape: {json.dumps([1, past, count])}"
    return found
