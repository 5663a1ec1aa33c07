"""Scores from the first layers of a decoder of transformers: a draft of what all layers say.

transformers holds the layers of a decoder in one `ModuleList`, and runs those that are in it. So a draft runs the same
modules with the same weights, then the decoder's own norm and head, and reads and writes the same caches.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from etbuild.errors import BuildError, DocumentPath, InputError
from etplugins.transformers.external_cache import Scores

_PATH: DocumentPath = ("model", "huggingface", "draft_layers")
_NUMBERS = ("layer_idx", "layer_id")  # transformers' names for the number of a layer


def scores(model: Any, config: Any, count: int, of_all: Scores) -> Scores:
    """A function that computes scores with the first layers.

    Args:
        model: The decoder.
        config: The configuration of the decoder.
        count: How many layers it runs.
        of_all: Computes scores with all layers.

    Raises:
        InputError: The decoder has no layer more than these.
        BuildError: The decoder does not hold its layers in one list.
    """
    every: int = config.num_hidden_layers
    if count >= every:
        message = f"a draft of {count} layers saves nothing: the model has {every}"
        raise InputError.at(_PATH, message, f"write {every - 1} or less" if every > 1 else "remove `draft_layers`")
    found = [name for name, part in model.named_modules() if _are_layers(part, every)]
    if len(found) != 1:
        raise _unsupported(model, f"it holds its {every} layers in {len(found)} lists")

    def draft(self: Any, tokens: torch.Tensor, cache: Any, position: torch.Tensor) -> torch.Tensor:
        with _only(self, found[0], count):
            return of_all(self, tokens, cache, position)

    return draft


def _are_layers(part: torch.nn.Module, count: int) -> bool:
    """Whether a module is a list of all layers of a decoder. Parts of a layer have its number, by which they find its
    cache."""
    return isinstance(part, torch.nn.ModuleList) and [*map(_number, part)] == [*range(count)]


def _number(layer: torch.nn.Module) -> int | None:
    numbers = {getattr(each, name, None) for each in layer.modules() for name in _NUMBERS} - {None}
    return numbers.pop() if len(numbers) == 1 else None


@contextmanager
def _only(model: Any, name: str, count: int) -> Iterator[None]:
    """Lets a model run only its first layers within this context.

    Args:
        model: The decoder.
        name: The name of the list of its layers.
        count: How many layers it runs.

    Raises:
        BuildError: The call has run other layers.
    """
    owner, _, attribute = name.rpartition(".")
    parts = vars(model.get_submodule(owner))["_modules"]  # in an export, the attribute may be a copy
    layers, ran = parts[attribute], list[int]()
    hooks = [
        layer.register_forward_pre_hook(lambda _layer, _inputs, index=index: ran.append(index))
        for index, layer in enumerate(layers)
    ]
    parts[attribute] = layers[:count]
    try:
        yield
    except IndexError as error:
        raise _unsupported(model, "its code reads what all layers give") from error
    finally:
        parts[attribute] = layers
        for hook in hooks:
            hook.remove()
    if ran != [*range(count)]:
        raise _unsupported(model, f"its code runs the layers {ran}")


def _unsupported(model: Any, reason: str) -> BuildError:
    message = f"`{type(model).__name__}` cannot run its first layers only: {reason}"
    return BuildError.at(_PATH, message, "remove `draft_layers` and the method that drafts")
