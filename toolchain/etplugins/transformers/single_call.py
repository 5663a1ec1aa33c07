"""Gives a model that takes all of its input in one call an entry `forward` that returns the results of its task.

`forward` takes the same inputs as in the class, by position or keyword. It returns the tensors of the class's output
that `Task.outputs` names. As the manifest says, the features of `feature-extraction` are pooled, go through dense
layers, and are normalized.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
from collections.abc import Callable
from typing import Any

import torch

from etbuild.errors import DocumentPath, InputError
from etbuild.plan.parts import ModelExample
from etplugins.transformers import dense, tasks
from etplugins.transformers.huggingface_config import PATH
from etplugins.transformers.parts import HuggingFace

_INPUT_NAMES = {"tokens": "tokens", "image": "an image", "sound": "a sound", "series": "a time series"}
"""The words of messages for the input of a task."""
_SHAPES = {"image": "[1, 3, HEIGHT, WIDTH]", "sound": "[1, SAMPLES]", "series": "[1, LENGTH, CHANNELS]"}
_VECTOR, _OF_MAP = "pooler_output", 4
"""The vector that a class makes of all features, and the number of dimensions of a map of features."""
_FEATURE_SIZES = ("feature_projection_input_dim", "num_mel_bins")
"""The keys of configurations for the number of features in a frame of a sound."""

_BESIDE_TOKENS = ("bbox", "image", "input_pronunciation_ids", "input_shape_ids", "visual_embeds", "xpath_tags_seq")
"""Inputs beside the tokens of a text. Without them, transformers computes with zeros in their place, or fails."""

_SOUNDS = ("codec", "speech")
"""The kinds of parts that make a sound."""

Entries = dict[str, Callable[..., tuple[torch.Tensor, ...]]]


def add(model: Any, settings: HuggingFace) -> Entries:
    """Prepares a model for calls that have all of its input.

    Args:
        model: The model. It is changed in place: its cache is turned off.
        settings: The model in the plan. Its task has outputs.

    Returns:
        The new methods for the class of the model, by name.

    Raises:
        InputError: The input of the model does not fit its task, or the manifest has more tokens than the model takes.
    """
    assert settings.task is not None
    task, original = tasks.TASKS[settings.task], type(model).forward
    _check(model, settings, task)
    turn_cache_off(model)

    @functools.wraps(original)
    def forward(self: Any, *inputs: Any, **keywords: Any) -> tuple[torch.Tensor, ...]:
        given = inspect.signature(original).bind_partial(self, *inputs, **keywords).arguments
        mask = given.get("attention_mask", given.get("kwargs", {}).get("attention_mask"))
        results = original(self, *inputs, **keywords, return_dict=True)
        names = (_VECTOR,) if settings.pooling == "model" else task.outputs
        values = [_value(results, name) for name in names]
        if any(value is None for value in values):
            _refuse_class(self, settings, task, names)
        return tuple(row_by_row(_pooled(self, value, settings, mask)) for value in values)

    return {"forward": forward}


def turn_cache_off(model: Any) -> None:
    """Makes a model compute without a cache, which would be among its results. Of a pair of models, each part has a
    configuration of its own.

    Args:
        model: The model. Its configurations are changed in place.
    """
    for part in model.modules():
        config: Any = getattr(part, "config", None)
        if getattr(config, "use_cache", False):
            config.use_cache = False


def row_by_row(value: Any) -> Any:
    """A result of a model, with the numbers of an image or a map in the order of its dimensions. Otherwise, a program
    may have them in the format channels_last where PyTorch has not (Swin2SR).

    Args:
        value: The result. Other tensors than those of four dimensions, and other values, stay as they are.
    """
    return value.contiguous() if isinstance(value, torch.Tensor) and value.dim() == _OF_MAP else value


def _value(results: Any, name: str) -> Any:
    """The first tensor with one of the names; None if there is none."""
    found = (getattr(results, each, None) for each in name.split(" or "))
    return next((each for each in found if isinstance(each, torch.Tensor)), None)


def _pooled(model: Any, features: torch.Tensor, settings: HuggingFace, mask: torch.Tensor | None) -> torch.Tensor:
    """The features of texts or images, [batch, hidden], from those of their parts, [batch, parts, hidden], as the
    manifest says. Those of an image may also be [1, hidden, rows, columns], which have only a mean. `mask` is 0 for
    padding, and otherwise 1, int64 [batch, parts]."""
    if features.dim() == _OF_MAP and settings.pooling in ("cls", "last"):
        message = (
            f"`pooling: {settings.pooling}` takes the features of one token, and `{type(model).__name__}` has a map"
        )
        raise InputError.at((*PATH, "pooling"), message, "write `pooling: model` or `pooling: mean`")
    pools: dict[str | None, Callable[[torch.Tensor], torch.Tensor]] = {
        "mean": lambda states: states.mean(dim=1) if states.dim() < _OF_MAP else states.mean(dim=(2, 3)),
        "model": lambda states: states.flatten(1),
        "cls": lambda states: states[:, 0],
        "last": lambda states: states[:, -1],
    }
    if mask is not None:
        pools |= _without_padding(mask)
    pooled = dense.apply(model, pools.get(settings.pooling, lambda states: states)(features), settings.dense)
    return torch.nn.functional.normalize(pooled, dim=-1) if settings.normalize else pooled


def _without_padding(mask: torch.Tensor) -> dict[str | None, Callable[[torch.Tensor], torch.Tensor]]:
    """How features are pooled without those of padding, which may be on both sides of a text."""
    weights = mask[:, :, None]
    numbered = torch.arange(1, mask.shape[1] + 1)[None] * mask

    def at(states: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return states.gather(1, index[:, None, None].expand(-1, 1, states.shape[2]))[:, 0]

    return {
        "mean": lambda states: (states * weights.to(states.dtype)).sum(dim=1) / weights.sum(dim=1).clamp(min=1),
        "cls": lambda states: at(states, mask.argmax(dim=1)),
        "last": lambda states: at(states, numbered.argmax(dim=1)),
    }


def _check(model: Any, settings: HuggingFace, task: tasks.Task) -> None:
    name, input_name = type(model).__name__, model.main_input_name
    path: DocumentPath = (*PATH, "task")
    if (task.takes == "tokens") != (input_name == "input_ids"):
        message = f"`{name}` takes `{input_name}`, and `task: {settings.task}` gives it {_INPUT_NAMES[task.takes]}"
        raise InputError.at(path, message)
    others = [each for each in _BESIDE_TOKENS if each in inspect.signature(type(model).forward).parameters]
    if task.takes == "tokens" and others:
        message = f"`{name}` also takes `{others[0]}`, and `task: {settings.task}` gives it tokens only"
        raise InputError.at(path, message, "leave out `task`, and write all inputs of the class in `example_kwargs`")
    if task.outputs == ("last_hidden_state",) and model.config.is_encoder_decoder:
        message = f"`{name}` is an encoder and a decoder, and `task: {settings.task}` calls one of them"
        raise InputError.at(path, message, "name the class of the encoder, such as T5EncoderModel")
    limit = _longest_text(model)
    if (
        task.takes == "tokens"
        and settings.max_source_length is not None
        and limit is not None
        and settings.max_source_length > limit
    ):
        message = f"max_source_length {settings.max_source_length} is more than the {limit} tokens that `{name}` takes"
        raise InputError.at((*PATH, "max_source_length"), message, f"write {limit} or less")


def _longest_text(model: Any) -> int | None:
    """The largest number of tokens that have positions; None if the model has no limit.

    A table of positions may have an entry for padding, as RoBERTa's. Positions begin after that entry.
    """
    config = model.config.get_text_config()
    limit = getattr(config, "max_position_embeddings", None)
    for name, layer in model.named_modules():
        if name.rpartition(".")[2] == "position_embeddings" and isinstance(layer, torch.nn.Embedding):
            reserved = 0 if layer.padding_idx is None else layer.padding_idx + 1
            return int(layer.num_embeddings) - reserved
    return limit if type(limit) is int and limit > 0 else None


def _refuse_class(model: Any, settings: HuggingFace, task: tasks.Task, names: tuple[str, ...]) -> None:
    missing = " and ".join(f"`{name}`" for name in names)
    if names != task.outputs:
        message = f"the output of `{type(model).__name__}` has no vector of its own, {missing}"
        raise InputError.at((*PATH, "pooling"), message, "write `pooling: mean`, or `pooling: cls`")
    message = f"`task: {settings.task}` returns {missing}, which the output of `{type(model).__name__}` lacks"
    if settings.model_class == task.model_class:
        raise InputError.at((*PATH, "task"), message)
    raise InputError.at((*PATH, "class"), message, f"leave out `class`: it is then `{task.model_class}`")


def constants(model: Any, settings: HuggingFace) -> dict[str, object]:
    """The constant methods of a task: `get_labels`, `get_blank_id` or `get_sampling_rate`.

    `get_labels` has the names of the labels in the order of their scores, as JSON. `get_blank_id` is the token that
    separates other tokens in the output of a CTC model. `get_sampling_rate` is the number of samples in a second of
    the sounds that a model makes.

    Args:
        model: The model.
        settings: The model in the plan.
    """
    task = None if settings.task is None else tasks.TASKS[settings.task]
    rate = getattr(model.config, "sampling_rate", None)
    if task is not None and task.parts in _SOUNDS and type(rate) is int:
        return {"get_sampling_rate": rate}
    if task is None or not task.outputs:
        return {}
    if not task.has_labels:
        blank = getattr(model.config, "pad_token_id", None)
        return {"get_blank_id": blank} if task.takes == "sound" and type(blank) is int else {}
    names = model.config.id2label
    labels = [str(names.get(number, f"LABEL_{number}")) for number in range(max(names, default=-1) + 1)]
    return {"get_labels": json.dumps(labels, ensure_ascii=False)}


def example(model: Any, example_plan: ModelExample, path: DocumentPath) -> torch.Tensor:
    """An example input with zeros: an image, a sound or a time series.

    Args:
        model: The model.
        example_plan: The input in the plan.
        path: The document path of the input.

    Raises:
        InputError: Neither the configuration nor the manifest says the shape of the input.
    """
    kind = example_plan.of_model
    shape = {"image": image, "series": _series}[kind](model.config) if kind != "sound" else None
    shape = _sound(model, example_plan.length) if kind == "sound" else shape
    if shape is None:
        described, to_write = _INPUT_NAMES[kind], _SHAPES[kind]
        message = f"the configuration of `{type(model).__name__}` does not say the shape of {described}"
        hint = f"write `methods: {{{path[1]}: {{example_inputs: [{{shape: {to_write}}}]}}}}`"
        hint += ", or `max_source_length`" if kind == "sound" else ""
        raise InputError.at(path[:2], message, hint)
    return torch.zeros(shape, dtype=model.dtype)


def image(config: Any) -> tuple[int, ...] | None:
    """The shape of an image, or of the images of a video; None if the configuration does not say their size.

    Args:
        config: The configuration of the model.
    """
    config = getattr(config, "vision_config", config)
    if getattr(config, "image_size", None) is None:  # a backbone may say it
        config = getattr(config, "backbone_config", None) or config
    size = getattr(config, "image_size", None)
    if size is None and hasattr(config, "num_patches"):  # a square of patches, as SigLIP 2 has it
        size = math.isqrt(config.num_patches) * config.patch_size
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    frames = getattr(config, "num_frames", None)
    many = () if frames is None else (frames,)
    return None if size is None else (1, *many, getattr(config, "num_channels", 3), height, width)


def _series(config: Any) -> tuple[int, ...] | None:
    """The shape of the past values of a time series: [1, length], or [1, length, channels] for a model of several."""
    length, channels = getattr(config, "context_length", None), getattr(config, "num_input_channels", None)
    return None if length is None else (1, length, *([] if channels is None else [channels]))


def _sound(model: Any, length: int | None) -> tuple[int, ...] | None:
    """The shape of a sound: `length` samples, or `length` frames of features; None if a size is unknown."""
    if length is None or model.main_input_name == "input_values":
        return None if length is None else (1, length)
    configs = (model.config, getattr(model.config, "encoder_config", None))
    sizes = (getattr(config, key, None) for config in configs for key in _FEATURE_SIZES)
    size = next((feature_size for feature_size in sizes if feature_size is not None), None)
    return None if size is None else (1, length, size)
