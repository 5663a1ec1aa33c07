"""Further methods for a class of Hugging Face, which `etbuild init` tries if those of its kind cannot be built.

They follow from the inputs of the class: its tasks first, then its own `forward`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from etkit.authoring.first_manifest import known_inputs
from etkit.authoring.first_manifest.files import Files, positive
from etkit.authoring.first_manifest.first import CALIBRATE, QUANTIZE
from etkit.authoring.first_manifest.kinds import Methods, longest_text, of_text_task, of_texts_and_images, single_call
from etkit.authoring.first_manifest.known_inputs import Input
from etplugins.transformers.class_inputs import ClassInputs
from etplugins.transformers.tasks import TASKS

_TAKES = {"input_ids": "tokens", "pixel_values": "image", "input_values": "sound", "input_features": "sound"}
_WRITERS = {"tokens": "seq2seq", "sound": "speech-to-text", "image": "image-to-text"}
"""The task of a class with an encoder and a decoder of text, by what the encoder takes."""
_RATE = 16000
_FILLED = 128  # tokens of a text that is filled up
_BESIDE = ("entity_ids", "grid_thw", "patches", "pronunciation", "shape_ids", "spatial_", "visual_", "xpath_")
"""Parts of the names of inputs without which a model would compute with zeros."""
_OF_IMAGE = "spatial_shapes"  # the task of two towers makes it of an image
_TASK = "  task: "
_FROM_CLASS = "an input of the class: a guess"
STEPS_OF_LOOP = (
    "write a factory with a method for one step of this loop, which takes its random numbers as an input, and run the "
    "loop in your application: see the page `Methods and inputs`"
)
"""What to write for a class that makes its results in a loop of its own."""
_PAIR = ["input_ids", "decoder_input_ids"]
_OF_TEXT = ("bbox", "image", "pixel_values")  # an encoder reads these together with its tokens, and not in their place
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
    if inputs.generates and takes == "tokens" and "decoder_input_ids" in inputs.names and _of_text(inputs):
        pass  # an encoder of only tokens would leave the image out
    elif inputs.generates and "decoder_input_ids" in inputs.names and takes in _WRITERS:
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
                    yield _with_needed(methods, known_inputs.of(kind, config, inputs), inputs)
    yield from _own_forward(kind, config, inputs)


def with_all_inputs(methods: Methods, kind: str, config: dict[str, Any], inputs: ClassInputs) -> Iterator[Methods]:
    """Yields methods that take the tokens of a text with the other inputs that the class reads, such as the places of
    words on a page. Nothing if there are none, or if the shape of one is not known.

    Args:
        methods: Methods that take the tokens only.
        kind: The name of the class.
        config: The content of `config.json`.
        inputs: The inputs of the class.
    """
    tasks = [TASKS[line.removeprefix(_TASK)] for line in methods.model if line.startswith(_TASK)]
    in_one_call = all(task.takes == "tokens" and task.outputs for task in tasks) and methods.runner is None
    known, names = known_inputs.of(kind, config, inputs), _names(kind, config, inputs)
    only_tokens = inputs.main != "input_ids" or names == ["input_ids"] or "decoder_input_ids" in names
    if in_one_call and not only_tokens and all(each in known for each in names):
        refused = [*_others(inputs), *_beside(inputs)]  # no task of a text takes them: the class's own `forward` does
        model = [] if refused else methods.model
        for lines in _with_ranges(names, known, inputs, longest_text(config)):
            yield replace(methods, lines=lines, model=model)


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
    if inputs.generates and "decoder_input_ids" in inputs.names and (together := _of_text(inputs)):
        return f": its encoder takes `{together[0]}` and a text in one call, and no task has such an encoder"
    known, others = known_inputs.of(kind, config, inputs), [each for each in inputs.needed if each != inputs.main]
    lacking = [each for each in (*others, *_beside(inputs), inputs.main) if each not in known]
    return f": it takes `{lacking[0]}`, whose shape is not known" if lacking else ""


def _written(inputs: ClassInputs) -> list[str]:
    """What a decoder that writes something else than tokens takes, such as frames of a sound."""
    return [each for each in inputs.names if _OF_DECODER.fullmatch(each)]


def _beside(inputs: ClassInputs) -> list[str]:
    """The inputs without which a class would compute with zeros."""
    return [each for each in inputs.names if any(part in each for part in _BESIDE) and known_inputs.is_data(each)]


def _of_text(inputs: ClassInputs) -> list[str]:
    """What an encoder takes together with its tokens."""
    return [each for each in _OF_TEXT if each in inputs.names and each != inputs.main]


def _with_needed(methods: Methods, known: dict[str, Input], inputs: ClassInputs) -> Methods:
    """The methods of a task with one input, for a class that needs more: with all, if their shapes are known."""
    if len(inputs.needed) < 2 or any(each not in known for each in inputs.needed):
        return methods
    return replace(methods, lines=["forward:", *_entries(inputs.needed, known)])


def _entries(names: Sequence[str], known: dict[str, Input]) -> list[str]:
    return ["  example_kwargs:", *(f"    {name}: {{{known[name].entry}}}   # {_FROM_CLASS}" for name in names)]


def _of_parts(kind: str, config: dict[str, Any], inputs: ClassInputs) -> Iterator[Methods]:
    """The methods of a class that has more than one, or whose input is a time series."""
    if "audio_codes" in inputs.decodes:
        samples = positive(config.get("sampling_rate")) or _RATE
        model = ["  task: audio-codec", f"  max_source_length: {samples}   # samples: one second"]
        yield Methods([], model, hint=CALIBRATE)
    elif {"image_embeddings", "input_points"} <= {*inputs.names}:
        yield Methods([], ["  task: mask-generation"], hint=CALIBRATE)
    elif {"input_ids", "pixel_values"} <= {*inputs.names} and {*_beside(inputs)} <= {_OF_IMAGE}:
        yield of_texts_and_images("zero-shot-image-classification", config)
    elif inputs.main == "past_values" and kind.endswith("ForPrediction") and "past_time_features" not in inputs.names:
        yield Methods([], ["  task: time-series-prediction"], hint=CALIBRATE)


def _own_forward(kind: str, config: dict[str, Any], inputs: ClassInputs) -> Iterator[Methods]:
    """The class's own `forward`, without a task and without a cache. Nothing for a class with inputs of an unknown
    shape, and for one that writes text about an image or a sound: it reads them in a loop of its own."""
    known, names = known_inputs.of(kind, config, inputs), _names(kind, config, inputs)
    writes_alone = inputs.generates and len(names) > 1 and "decoder_input_ids" not in names
    if any(each not in known for each in names) or writes_alone:
        return
    length, hint = longest_text(config), QUANTIZE if inputs.main == "input_ids" else CALIBRATE
    if names == _PAIR and inputs.generates:
        dims = zip(names, ("source", "target"), strict=True)
        ranges = [f"    {name}: {known[name].range(dim, length)}" for name, dim in dims]
        lines = ["forward:", *_entries(names, known), "  dynamic_kwargs_shapes:", *ranges]
        yield Methods(lines, hint=hint, remarks=[_AGAIN])
        yield _of_filled_texts(inputs, length, hint)
    elif names == ["input_ids"] and not kind.endswith("ForMultipleChoice"):
        lines = [
            f"  example_inputs: [{{{known['input_ids'].entry}}}]   # input_ids",
            f"  dynamic_shapes: [{known['input_ids'].range('seq', length)}]",
        ]
        yield Methods(["forward:", *lines], hint=hint)
    else:
        again = [_AGAIN] if inputs.generates else []
        for lines in _with_ranges(names, known, inputs, length):
            yield Methods(lines, hint=hint, remarks=again)


def _names(kind: str, config: dict[str, Any], inputs: ClassInputs) -> list[str]:
    """The names of the inputs of a class's own `forward`. If its main input is of no kind that is known here, all that
    its docstring says the shape of."""
    known = known_inputs.of(kind, config, inputs)
    others = [*_others(inputs), *known_inputs.own_shaped(known, inputs)]
    if inputs.main not in (*_TAKES, *known_inputs.of_config(kind, config)) and not inputs.loops:
        others += known_inputs.all_documented(known, inputs)
    decoded = [each for each in ("decoder_input_ids",) if each in inputs.names]
    return [*dict.fromkeys((inputs.main, *others, *_beside(inputs), *decoded, *inputs.needed))]


def _with_ranges(
    names: Sequence[str], known: dict[str, Input], inputs: ClassInputs, longest: int
) -> Iterator[list[str]]:
    """The lines of methods for texts of many lengths, then of one length: with a mask of what fills up a shorter one,
    and then without it."""
    lines = ["forward:", *_entries(names, known)]
    ranges = {name: known[name].range("target" if name in _PAIR[1:] else "seq", longest) for name in names}
    if any(ranges.values()):
        yield [
            *lines,
            "  dynamic_kwargs_shapes:",
            *(f"    {name}: {each}" for name, each in ranges.items() if each is not None),
        ]
    if "attention_mask" in inputs.names and "input_ids" in names:
        mask = f"    attention_mask: {{{known['input_ids'].entry}, fill: ones}}   # 0 for what fills up a text"
        yield [*lines, mask]
    yield lines


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
