"""The static key-value cache of transformers in the buffers of a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from etbuild.errors import DocumentPath, InputError

_CACHE: DocumentPath = ("model", "huggingface", "cache")


def add(model: Any, config: Any, max_length: int) -> None:
    """Adds the buffers of a cache to a model. Each layer keeps every token at its position.

    Args:
        model: The model. It is changed in place.
        config: The configuration of its decoder.
        max_length: The number of tokens that the cache holds.

    Raises:
        InputError: A layer caches something other than keys and values.
    """
    from transformers import StaticCache
    from transformers.cache_utils import StaticLayer
    from transformers.configuration_utils import get_head_shapes

    cache = StaticCache(config=config, max_cache_len=max_length)
    for layer in cache.layers:
        is_sliding(layer)
    cache.layers = [StaticLayer(max_length) for _ in cache.layers]  # a mask hides what is outside of a sliding window
    cache.early_initialization(1, *get_head_shapes(config), model.dtype, torch.device("cpu"))
    for index, layer in enumerate(cache.layers):
        model.register_buffer(f"key_cache_{index}", layer.keys, persistent=False)
        model.register_buffer(f"value_cache_{index}", layer.values, persistent=False)
        layer.keys = layer.values = None  # the buffers hold them; `calling` sets them for each call
    model.etbuild_cache = cache


@contextmanager
def calling(model: Any, position: torch.Tensor) -> Iterator[Any]:
    """Yields the cache for one call.

    Args:
        model: The model that has its buffers.
        position: The position of the first token of the call, int64 [1].
    """
    layers = model.etbuild_cache.layers
    for index, layer in enumerate(layers):
        layer.keys, layer.values = getattr(model, f"key_cache_{index}"), getattr(model, f"value_cache_{index}")
        layer.cumulative_length = position[0].clone()
    try:
        yield model.etbuild_cache
    finally:
        for layer in layers:  # otherwise a copy of the model would contain traced tensors
            layer.keys = layer.values = layer.cumulative_length = None


def is_sliding(layer: Any) -> bool:
    """Whether a layer of transformers' static cache has a sliding window.

    Raises:
        InputError: The layer caches something other than keys and values.
    """
    from transformers.cache_utils import StaticLayer, StaticSlidingWindowLayer

    if type(layer) not in (StaticLayer, StaticSlidingWindowLayer):
        message = f"a layer of the model caches something other than keys and values: {type(layer).__name__}"
        raise InputError.at(_CACHE, message, "leave out `cache`, or write a factory for this model")
    return type(layer) is StaticSlidingWindowLayer
