"""Gives a model that has all of its input in one call the entry `forward`, which returns what its task is about.

`forward` takes what that of the class takes, by position or keyword, and returns tensors of the class's output: those
that `Task.outputs` names. The features of `feature-extraction` are pooled, go through the dense layers, and are
normalized, as the manifest says.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import torch

from etbuild.errors import DocumentPath, InputError
from etbuild.manifest import tasks
from etbuild.model import dense
from etbuild.model.huggingface_config import PATH
from etbuild.plan.parts import HuggingFace, ModelExample

_NAMED = {"tokens": "tokens", "image": "an image", "sound": "a sound"}
"""What a task gives to a model, in messages."""
_FEATURE_SIZES = ("feature_projection_input_dim", "num_mel_bins")
"""The keys of configurations for the features in a frame of a sound."""

Entries = dict[str, Callable[..., tuple[torch.Tensor, ...]]]


def add(model: Any, wanted: HuggingFace) -> Entries:
    """Prepares a model for calls that have all of its input.

    Args:
        model: The model. It is changed in place: it keeps no cache.
        wanted: What the manifest says about it. Its task has outputs.

    Returns:
        The new methods of its class.

    Raises:
        InputError: The model takes something else than its task says, or not as many tokens as the manifest says.
    """
    assert wanted.task is not None
    task, original = tasks.TASKS[wanted.task], type(model).forward
    _check(model, wanted, task)
    if getattr(model.config, "use_cache", False):
        model.config.use_cache = False

    @functools.wraps(original)
    def forward(self: Any, *inputs: Any, **keywords: Any) -> tuple[torch.Tensor, ...]:
        if wanted.pooling is not None and (inputs[1:] or "attention_mask" in keywords):
            _refuse_padding()
        results = original(self, *inputs, **keywords, return_dict=True)
        values = [getattr(results, name, None) for name in task.outputs]
        if any(value is None for value in values):
            _refuse_class(self, wanted, task)
        return tuple(_of_text(self, value, wanted) for value in values)

    return {"forward": forward}


def _of_text(model: Any, features: torch.Tensor, wanted: HuggingFace) -> torch.Tensor:
    """The features of a text, [1, hidden], made of those of its tokens, [1, seq, hidden]; as the manifest says."""
    pools: dict[str | None, Callable[[torch.Tensor], torch.Tensor]] = {
        "mean": lambda each: each.mean(dim=1),
        "cls": lambda each: each[:, 0],
        "last": lambda each: each[:, -1],
    }
    pooled = dense.apply(model, pools.get(wanted.pooling, lambda each: each)(features), wanted.dense)
    return torch.nn.functional.normalize(pooled, dim=-1) if wanted.normalize else pooled


def _check(model: Any, wanted: HuggingFace, task: tasks.Task) -> None:
    name, takes = type(model).__name__, model.main_input_name
    path: DocumentPath = (*PATH, "task")
    if (task.takes == "tokens") != (takes == "input_ids"):
        message = f"`{name}` takes `{takes}`, and `task: {wanted.task}` gives it {_NAMED[task.takes]}"
        raise InputError.at(path, message)
    if task.outputs == ("last_hidden_state",) and model.config.is_encoder_decoder:
        message = f"`{name}` is an encoder and a decoder, and `task: {wanted.task}` calls one of them"
        raise InputError.at(path, message, "name the class of the encoder, such as T5EncoderModel")
    limit = _longest_text(model)
    if (
        task.takes == "tokens"
        and wanted.max_source_length is not None
        and limit is not None
        and wanted.max_source_length > limit
    ):
        message = f"max_source_length {wanted.max_source_length} is more than the {limit} tokens that `{name}` takes"
        raise InputError.at((*PATH, "max_source_length"), message, f"write {limit} or less")


def _longest_text(model: Any) -> int | None:
    """The largest number of tokens that have positions; None if the model has no limit.

    A table of positions with an entry for padding begins after it, as RoBERTa's does.
    """
    config = model.config.get_text_config()
    limit = getattr(config, "max_position_embeddings", None)
    for name, layer in model.named_modules():
        if name.rpartition(".")[2] == "position_embeddings" and isinstance(layer, torch.nn.Embedding):
            used = 0 if layer.padding_idx is None else layer.padding_idx + 1
            return int(layer.num_embeddings) - used
    return limit if type(limit) is int and limit > 0 else None


def _refuse_padding() -> None:
    message = "the task pools the features of every token, so that `forward` takes no mask of padding"
    raise InputError.at((*PATH, "pooling"), message, "give it tokens only, or write `pooling: none`")


def _refuse_class(model: Any, wanted: HuggingFace, task: tasks.Task) -> None:
    missing = " and ".join(f"`{name}`" for name in task.outputs)
    message = f"`task: {wanted.task}` returns {missing}, which the output of `{type(model).__name__}` lacks"
    raise InputError.at((*PATH, "class"), message, f"leave out `class`: it is then `{task.model_class}`")


def constants(model: Any, wanted: HuggingFace) -> dict[str, object]:
    """The constant methods of a task: `get_labels`, the names of the labels in the order of their scores, as JSON; and
    `get_blank_id`, the token that separates others in what a CTC returns.

    Args:
        model: The model.
        wanted: What the manifest says about it.
    """
    task = None if wanted.task is None else tasks.TASKS[wanted.task]
    if task is None or not task.outputs:
        return {}
    blank = getattr(model.config, "pad_token_id", None)
    if task.takes == "sound" and type(blank) is int:
        return {"get_blank_id": blank}
    named = model.config.id2label
    labels = [str(named.get(number, f"LABEL_{number}")) for number in range(max(named, default=-1) + 1)]
    return {"get_labels": json.dumps(labels, ensure_ascii=False)} if task.has_labels else {}


def example(model: Any, wanted: ModelExample, path: DocumentPath) -> torch.Tensor:
    """An example input with zeros: an image or a sound.

    Args:
        model: The model.
        wanted: What it is an example of.
        path: The document path of the input.

    Raises:
        InputError: Neither the configuration nor the manifest says its shape.
    """
    shape = _image(model.config) if wanted.of_model == "image" else _sound(model, wanted.length)
    if shape is None:
        given = "[1, 3, HEIGHT, WIDTH]" if wanted.of_model == "image" else "[1, SAMPLES]"
        message = f"the configuration of `{type(model).__name__}` does not say the shape of {_NAMED[wanted.of_model]}"
        hint = f"write `methods: {{forward: {{example_inputs: [{{shape: {given}}}]}}}}`"
        hint += "" if wanted.of_model == "image" else ", or `max_source_length`"
        raise InputError.at(path[:2], message, hint)
    return torch.zeros(shape, dtype=model.dtype)


def _image(config: Any) -> tuple[int, ...] | None:
    """The shape of an image; None if the configuration does not say its size."""
    config = getattr(config, "vision_config", config)
    size = getattr(config, "image_size", None)
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    return None if size is None else (1, getattr(config, "num_channels", 3), height, width)


def _sound(model: Any, length: int | None) -> tuple[int, ...] | None:
    """The shape of a sound of a length: samples, or frames of features; None if something is not known."""
    if length is None or model.main_input_name == "input_values":
        return None if length is None else (1, length)
    configs = (model.config, getattr(model.config, "encoder_config", None))
    sizes = (getattr(config, key, None) for config in configs for key in _FEATURE_SIZES)
    size = next((each for each in sizes if each is not None), None)
    return None if size is None else (1, length, size)
