"""The static key-value cache of transformers in the buffers of a model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from etbuild.errors import DocumentPath, InputError

_CACHE: DocumentPath = ("model", "huggingface", "cache")


def add(model: Any, config: Any, max_length: int, call: Callable[[Any, Any], object] | None = None) -> None:
    """Adds the buffers of a cache to a model. Each layer keeps every token at its position.

    Args:
        model: The model. It is changed in place.
        config: The configuration of its decoder.
        max_length: The number of tokens that the cache holds.
        call: Calls a copy of the model with one token and a cache of transformers, which shows the shapes of keys and
            values. None for a model whose configuration says them.

    Raises:
        InputError: A layer caches something other than keys and values, or the model reads no cache.
    """
    from transformers.cache_utils import StaticLayer
    from transformers.configuration_utils import get_head_shapes

    cache = of_transformers(config, max_length)
    shown = [StaticLayer(max_length) for _ in cache.layers]  # a mask hides what is outside of a sliding window
    cache.layers = shown
    if call is not None and _initialize(cache, model, call) and not any(layer.is_initialized for layer in shown):
        raise _reads_no_cache(model)
    cache.layers = [_layer(max_length) for _ in shown]
    cache.early_initialization(1, *get_head_shapes(config), model.dtype, torch.device("cpu"))
    for index, (layer, seen) in enumerate(zip(cache.layers, shown, strict=True)):
        for kind, tensor in (("key", layer.keys), ("value", layer.values)):
            like = getattr(seen, f"{kind}s") if seen.is_initialized else tensor
            model.register_buffer(f"{kind}_cache_{index}", torch.zeros(like.shape, dtype=like.dtype), persistent=False)
        layer.keys = layer.values = None  # the buffers hold them; `calling` sets them for each call
    model.etbuild_cache = cache


def _layer(max_length: int) -> Any:
    """A layer of transformers' static cache that knows whether a call has updated it."""
    from transformers.cache_utils import StaticLayer

    class Layer(StaticLayer):  # type: ignore[misc]  # transformers has no types
        updated = False

        def update(self, *args: Any, **kwargs: Any) -> Any:
            self.updated = True
            return super().update(*args, **kwargs)

    return Layer(max_length)


def _reads_no_cache(model: Any) -> InputError:
    message = f"`{type(model).__name__}` reads no cache: it would compute each token without those before it"
    return InputError.at(_CACHE, message, "leave out `cache`")


def _initialize(cache: Any, model: Any, call: Callable[[Any, Any], object]) -> bool:
    """Calls the model without computing anything, which initializes the layers with the shapes that it caches.

    They may differ from those of the configuration: DeepSeek caches compressed keys, and Falcon the keys of one head.
    False: the model looks at values, so that it cannot be called so, and its layers stay uninitialized.
    """
    from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with FakeCopyMode(mode):
            copied = copy.deepcopy(model)  # a model may store tensors in itself, such as rotations for long texts
        with torch.no_grad(), mode:
            call(copied, cache)
    except Exception:  # noqa: BLE001 - if it is a mistake, the first real call tells it
        return False
    return True


@contextmanager
def calling(model: Any, position: torch.Tensor) -> Iterator[Any]:
    """Yields the cache for one call.

    Args:
        model: The model that has its buffers.
        position: The position of the first token of the call, int64 [1].

    Raises:
        InputError: The model has not read it.
    """
    layers = model.etbuild_cache.layers
    for index, layer in enumerate(layers):
        layer.keys, layer.values = getattr(model, f"key_cache_{index}"), getattr(model, f"value_cache_{index}")
        layer.cumulative_length, layer.updated = position[0].clone(), False
    try:
        yield model.etbuild_cache
        if not any(layer.updated for layer in layers):
            raise _reads_no_cache(model)
    finally:
        for layer in layers:  # otherwise a copy of the model would contain traced tensors
            layer.keys = layer.values = layer.cumulative_length = None
            layer.updated = False


def of_transformers(config: Any, max_length: int) -> Any:
    """The static cache of transformers, without buffers. Each layer keeps keys and values.

    Args:
        config: The configuration of the decoder.
        max_length: The number of tokens that the cache holds.

    Raises:
        InputError: A layer caches something else.
    """
    from transformers import StaticCache
    from transformers.cache_utils import StaticLayer, StaticSlidingWindowLayer

    kinds = (StaticLayer, StaticSlidingWindowLayer)
    try:
        cache = StaticCache(config=config, max_cache_len=max_length)
        others = [type(layer).__name__ for layer in cache.layers if type(layer) not in kinds]
    except KeyError as error:  # transformers has no static layer of this kind
        others = [str(error.args[0])]
    if others:
        message = f"a layer of the model caches something other than keys and values: {others[0]}"
        raise InputError.at(_CACHE, message, "leave out `cache`, or write a factory for this model")
    return cache
