"""Puts the static cache of transformers into buffers of a model: keys and values, and states."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.cache_utils import StaticLayer

from etbuild.errors import BuildError, DocumentPath, InputError
from etbuild.exception_text import summary
from etplugins.transformers.state_cache import StateCache, has_states, number, states_only, unsupported

_CACHE: DocumentPath = ("model", "huggingface", "cache")

Call = Callable[[Any, Any], object]
"""Takes a model and a cache of transformers, and calls the model with the cache and one token."""


def add(model: Any, config: Any, max_length: int, call: Call | None = None) -> None:
    """Adds the buffers of a cache to a model. Each layer keeps every token at its position, or its states.

    Args:
        model: The model. It is changed in place.
        config: The configuration of the model's decoder.
        max_length: The number of tokens that the cache holds.
        call: Calls a copy of the model with one token and a cache of transformers, which shows the shapes of keys,
            values and states. None for a model whose configuration has these shapes.

    Raises:
        InputError: A layer caches something other than keys, values and states, or the model reads no cache.
        BuildError: The states of a layer cannot be kept.
    """
    from transformers.configuration_utils import get_head_shapes

    kinds = layers_of(config, max_length)
    sample = shown_by_call(model, kinds, max_length, call)
    cache = StateCache([_TrackedLayer(max_length) if keeps_keys(kind) else states_only() for kind in kinds])
    for layer, sample_layer in zip(cache.layers, sample.layers, strict=True):
        if keeps_keys(layer) and sample_layer.is_initialized:
            layer.lazy_initialization(*(_no_tokens(tensor) for tensor in (sample_layer.keys, sample_layer.values)))
    if any(keeps_keys(layer) and not layer.is_initialized for layer in cache.layers):
        cache.early_initialization(1, *get_head_shapes(config), model.dtype, torch.device("cpu"))
    for index, layer in _layers_with_keys(cache):
        model.register_buffer(f"key_cache_{index}", layer.keys, persistent=False)
        model.register_buffer(f"value_cache_{index}", layer.values, persistent=False)
        layer.keys = layer.values = None  # the buffers hold them; `calling` sets them for each call
    model.etbuild_cache = cache


def _no_tokens(tensor: torch.Tensor) -> torch.Tensor:
    """Keys or values of no tokens, [1, heads, 0, size]."""
    return torch.zeros((*tensor.shape[:2], 0, tensor.shape[3]), dtype=tensor.dtype)


def _layers_with_keys(cache: StateCache) -> list[tuple[int, Any]]:
    """The layers that keep keys and values, with their indices."""
    return [(index, layer) for index, layer in enumerate(cache.layers) if keeps_keys(layer)]


def shown_by_call(model: Any, kinds: list[Any], max_length: int, call: Call | None) -> StateCache:
    """A cache that a call of the model with fake tensors has initialized. Adds the states of layers to the model.

    The shapes may differ from those of the configuration: DeepSeek caches compressed keys, and Falcon the keys of one
    head. Layers stay uninitialized without `call`, or if the model reads values, which fake tensors lack.

    Args:
        model: The model. It gets a module with its states, if its layers keep any.
        kinds: The layers of transformers' static cache.
        max_length: The number of tokens that the cache holds.
        call: Calls a copy of the model; None for no call.

    Raises:
        InputError: The model reads no cache.
        BuildError: The states of a layer cannot be kept.
    """
    # Layers with a sliding window keep all tokens too: a mask hides those outside of the window.
    cache = StateCache([StaticLayer(max_length) if keeps_keys(kind) else states_only() for kind in kinds])
    error = None if call is None else error_of_call(model, cache, call)
    if any(has_states(kind) for kind in kinds):
        if isinstance(error, BuildError):
            raise error
        if call is None or error is not None:
            raise unsupported("their shapes are not known" if error is None else summary(error)) from error
        written = [any(True for _ in states.buffers()) for states in cache.states]
        if without := [index for index, kind in enumerate(kinds) if has_states(kind) and not written[index]]:
            raise unsupported(f"layer {without[0]} keeps its state in an attribute of the model, and not in a cache")
        model.states = torch.nn.ModuleList(states.with_zeros() for states in cache.states)
    elif call is not None and error is None and not any(layer.is_initialized for layer in cache.layers):
        raise _reads_no_cache(model)
    return cache


def error_of_call(model: Any, cache: StateCache, call: Call) -> Exception | None:
    """Calls a copy of a model with fake tensors, and returns the error, for instance if the model reads values.

    Args:
        model: The model.
        cache: The cache for the call.
        call: Calls the copy.
    """
    from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with FakeCopyMode(mode):
            copied = copy.deepcopy(model)  # a model may store tensors in itself, such as rotations for long texts
        with torch.no_grad(), mode, cache.at(torch.tensor([0]), copied):
            call(copied, cache)
    except Exception as error:  # noqa: BLE001 - the first real call shows the error
        return error
    return None


def keeps_keys(layer: Any) -> bool:
    """Whether a layer of transformers' static cache keeps keys and values."""
    return isinstance(layer, StaticLayer)


class _TrackedLayer(StaticLayer):  # type: ignore[misc]  # transformers has no types
    """A layer of transformers' static cache that notes whether a call has updated it.

    Attributes:
        updated: Whether a call has updated it.
        asked: Whether a call has asked for the size of a mask.
        written: The number of tokens before a call, if the layer gives a model only the tokens that it has, as a cache
            that grows does; otherwise None.
    """

    updated = asked = False
    written: Any = None

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        self.updated = True
        keys, values = super().update(key_states, value_states, *args, **kwargs)
        if self.written is None:
            return keys, values
        count = self.written + key_states.shape[-2]
        return keys[:, :, :count], values[:, :, :count]

    def get_mask_sizes(self, query_length: int) -> Any:
        self.asked = True
        return super().get_mask_sizes(query_length) if self.written is None else (self.written + query_length, 0)

    def get_seq_length(self) -> Any:
        if self.written is not None:
            return self.written
        count = super().get_seq_length()  # cloned below: `update` changes this tensor, and a model may ask before it
        return count.clone() if isinstance(count, torch.Tensor) else count


def _reads_no_cache(model: Any) -> InputError:
    message = f"`{type(model).__name__}` reads no cache: it would compute each token without those before it"
    return InputError.at(_CACHE, message, "leave out `cache`")


@contextmanager
def calling(model: Any, position: torch.Tensor, only_written: bool = False, masks: bool = False) -> Iterator[Any]:
    """Yields the cache for one call.

    Args:
        model: The model that has the buffers of the cache.
        position: The position of the first token of the call, int64 [1].
        only_written: Whether the cache gives the model only the tokens that it has.
        masks: Whether the model makes a mask of its own for each call, by the sizes that the cache says.

    Raises:
        InputError: The model has not read the cache, or has made no mask.
    """
    cache = model.etbuild_cache
    layers = _layers_with_keys(cache)
    last_position = max((layer.max_cache_len - 1 for _, layer in layers), default=0)
    written = number(position[0], last_position) if only_written else None
    for index, layer in layers:
        layer.written, layer.asked = written, only_written
        layer.keys, layer.values = getattr(model, f"key_cache_{index}"), getattr(model, f"value_cache_{index}")
        layer.cumulative_length, layer.updated = position[0].clone(), False
    try:
        with cache.at(position, model):
            yield cache
        if not any(layer.updated for _, layer in layers) and not cache.updated:
            raise _reads_no_cache(model)
        if masks and not any(layer.asked for _, layer in layers):
            message = f"`{type(model).__name__}` makes no mask for a token: it would read an empty cache"
            raise InputError.at(_CACHE, message, "write a factory for this model")
    finally:
        for _, layer in layers:  # otherwise a copy of the model would contain traced tensors
            layer.keys = layer.values = layer.cumulative_length = layer.written = None
            layer.updated = False


def layers_of(config: Any, max_length: int) -> list[Any]:
    """The layers of transformers' static cache, without buffers. Each keeps keys and values, states, both, or nothing.

    Args:
        config: The configuration of the decoder.
        max_length: The number of tokens that the cache holds.

    Raises:
        InputError: A layer caches something other than keys, values and states.
    """
    from transformers import StaticCache
    from transformers.cache_utils import DummyLayer, StaticSlidingWindowLayer

    kinds = [StaticLayer, StaticSlidingWindowLayer, DummyLayer]  # the last one may read the keys of another layer
    try:
        layers: list[Any] = StaticCache(config=config, max_cache_len=max_length).layers
        unsupported_kinds = [
            type(layer).__name__ for layer in layers if type(layer) not in kinds and not has_states(layer)
        ]
    except KeyError as error:  # transformers has no static layer of this kind
        unsupported_kinds = [str(error.args[0])]
    if unsupported_kinds:
        message = f"a layer of the model caches something other than keys, values and states: {unsupported_kinds[0]}"
        raise InputError.at(_CACHE, message, "leave out `cache`, or write a factory for this model")
    return layers
