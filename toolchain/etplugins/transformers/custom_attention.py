"""Runs a decoder of transformers with ExecuTorch's attention operators and its key-value caches.

transformers finds an attention by its name in `AttentionInterface`, and the function for its masks by the same name in
`AttentionMaskInterface`. Its caches have a layer for each layer of the model. Here, a module of ExecuTorch's
`custom_kv_cache` holds the keys and values of each layer, in buffers of the model with the shape [1, positions, heads,
head size], which `llama::custom_sdpa` takes directly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.masking_utils import causal_mask_function

from etbuild.errors import BuildError, DocumentPath
from etplugins.transformers.state_cache import StateCache, states_only

NAME = "executorch_custom_sdpa"
"""The name of the attention in transformers."""

_IGNORED = frozenset({"cache_position", "dropout", "is_causal", "position_ids", "sliding_window", "use_cache"})
"""Arguments that models give to an attention, and that the operators do not need: the masks contain the window."""

_LOWEST = torch.finfo(torch.float32).min  # as in transformers' own masks: -inf minus -inf would be NaN
_PATH: DocumentPath = ("model", "huggingface", "attention")


def unsupported(reason: str) -> BuildError:
    """The error for a model whose attention needs something that ExecuTorch's operators do not compute.

    Args:
        reason: The feature that it needs, as a sentence.
    """
    hint = "write `attention: sdpa` or `attention: eager`, and `kind: static` for the cache"
    return BuildError.at(_PATH, f"`custom_sdpa` cannot compute the attention of this model: {reason}", hint)


@dataclass(frozen=True)
class ModelCall:
    """One call of a model.

    Attributes:
        position: The position of the first token, int64 [1].
        stores: The cache of each layer; None for a layer without keys and values.
        ring: The number of positions of a ring; None if no layer has one.
        longest: The largest number of tokens in one call.
        has_mask: Whether the caller gives the model a mask. Such a mask hides nothing.
        updated: The `id` of each cache that got new keys and values in this call.
        attended: The `id` of each cache that the attention has read in this call.
    """

    position: torch.Tensor
    stores: tuple[torch.nn.Module | None, ...]
    ring: int | None
    longest: int
    has_mask: bool = False
    updated: set[int] = field(default_factory=set)
    attended: set[int] = field(default_factory=set)


_call: ContextVar[ModelCall] = ContextVar("call")


@contextmanager
def calling(model: Any, call: ModelCall) -> Iterator[Cache]:
    """Yields the cache for one call of a model. Within this context, `_attention` and `_mask` know the call.

    Args:
        model: The model. It has the states of its layers, if they keep any.
        call: The call.

    Raises:
        BuildError: The model's own code computes attention, and does not know the caches or their layout.
    """
    token = _call.set(call)
    try:
        cache = StateCache([states_only() if store is None else _StoreLayer(store, call) for store in call.stores])
        with cache.at(call.position, model):
            yield cache
    except RuntimeError as error:
        if call.updated == call.attended:
            raise
        raise unsupported(f"it computes with what its cache holds before it attends to it: {error}") from error
    finally:
        _call.reset(token)
    if (not call.updated and not cache.updated) or call.updated != call.attended:
        raise unsupported("it does not use transformers' interface for attention")


def register() -> None:
    """Registers the attention and its masks in transformers."""
    from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _mask)


def make_store(kind: str | None, length: int, shape: tuple[int, int], dtype: torch.dtype) -> torch.nn.Module:
    """The cache of one layer: a module of ExecuTorch, whose buffers no weights file holds.

    Args:
        kind: The kind of the cache in the manifest. `quantized` has 8 bits for each value, with a scale for each token
            and head; other kinds have the dtype of the model.
        length: The number of positions.
        shape: The number of heads of keys and values, and the size of a head.
        dtype: The dtype of the model.
    """
    from executorch.examples.models.llama.source_transformation import custom_kv_cache

    store: torch.nn.Module
    if kind == "quantized":
        asymmetric = custom_kv_cache.QuantizedCacheType.AffineAsymmetric
        store = custom_kv_cache.QuantizedKVCache(1, length, *shape, asymmetric, True, False)
    else:
        store = custom_kv_cache.CustomKVCache(1, length, *shape, dtype)
    for name, buffer in list(store.named_buffers()):
        store.register_buffer(name, torch.zeros_like(buffer), persistent=False)
    return store


class _StoreLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers has no types
    """A layer of transformers' cache that keeps its keys and values in a module of ExecuTorch."""

    is_compileable = True

    def __init__(self, store: torch.nn.Module, call: ModelCall) -> None:
        super().__init__()
        self.store, self.call = store, call
        self.is_sliding = self.length == call.ring
        self.is_initialized = True

    @property
    def length(self) -> int:
        """The number of positions that the layer holds."""
        return int(self.store.max_context_length)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Does nothing: the buffers exist."""

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> Any:
        """Writes the keys and values of the new tokens, [1, heads, seq, size].

        Returns the keys and values of all tokens, [1, positions, heads, size].
        """
        _, _, heads, size = self.store.k_cache.shape
        for shape in (key_states.shape, value_states.shape):
            if (shape[0], shape[1], shape[3]) != (1, heads, size):
                shown = f"[{shape[0]}, {shape[1]}, seq, {shape[3]}]"
                raise unsupported(f"a layer caches {shown}; its configuration says [1, {heads}, seq, {size}]")
        indices = None
        if self.is_sliding:
            torch._check(key_states.shape[2] <= self.call.longest)
            positions = torch.arange(key_states.shape[2]) + self.call.position
            indices = (positions - positions // self.length * self.length).unsqueeze(0)
        self.store.update(self.call.position, key_states, value_states, indices)
        self.call.updated.add(id(self.store))
        return self.store.k_cache, self.store.v_cache

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """The number of positions in the cache, and the first position."""
        return self.length, 0

    def get_seq_length(self) -> Any:
        """The number of tokens in the cache before this call, int64 []."""
        return self.call.position[0]

    def get_max_length(self) -> int:
        """The number of positions."""
        return self.length


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """The attention of one layer, [1, seq, heads, size]. `query` is [1, heads, seq, size].

    `key` and `value` are the results of `_StoreLayer.update`, and `attention_mask` is the result of `_mask`. Raises
    BuildError if one of `options` would change the result.
    """
    refused = sorted(name for name, option in options.items() if option is not None and not _is_ignored(name))
    call = _call.get()
    if refused:
        raise unsupported(f"it computes with {' and '.join(f'`{name}`' for name in refused)}")
    stores = (store for store in call.stores if store is not None)
    store = next((store for store in stores if store.k_cache is key and store.v_cache is value), None)
    if store is None:
        raise unsupported(f"`{type(module).__name__}` does not attend to what its cache holds")
    call.attended.add(id(store))
    if attention_mask is None and not (options.get("is_causal", True) and getattr(module, "is_causal", True)):
        raise unsupported("its tokens attend to later ones")
    mask = None if attention_mask is None else attention_mask[0, 0]
    if mask is None and store.max_context_length == call.ring:
        raise unsupported(f"`{type(module).__name__}` attends to tokens outside of its window")
    if key.dtype == torch.int8:
        return _quantized(query, store, mask, scaling, call), None
    start = call.position[0].item() if mask is None else 0
    return torch.ops.llama.custom_sdpa(query.transpose(1, 2), key, value, start, mask, 0.0, mask is None, scaling), None


def _is_ignored(name: str) -> bool:
    """Whether the result does not depend on the argument of this name, such as `output_router_logits`."""
    return name in _IGNORED or name.startswith("output_")


def _quantized(query: Any, store: Any, mask: Any, scaling: float | None, call: ModelCall) -> torch.Tensor:
    """The attention of one layer with a quantized cache. ExecuTorch's module has a fixed scaling."""
    from executorch.examples.models.llama.source_transformation.sdpa import QuantizedSDPA

    _, heads, length, size = query.shape
    factor = 1.0 if scaling is None else scaling * math.sqrt(size)
    if not math.isclose(factor, 1.0):
        query = query * factor
    keys, values = store.k_cache.transpose(1, 2), store.v_cache.transpose(1, 2)
    attention = QuantizedSDPA(heads * size, store, use_attention_mask=mask is not None)
    result: torch.Tensor = attention(call.position, query, keys, values, 1, length, mask)
    return result.view(1, length, heads, size)


def _mask(
    *,
    q_length: int,
    kv_length: int,
    q_offset: torch.Tensor,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    **unused: Any,
) -> torch.Tensor | None:
    """The mask of all layers of one kind: float32 [1, 1, seq, positions]; None for the causal mask.

    `q_offset` is the position of the first new token, int64 []. `mask_function` takes indices of batch, head, query and
    key, and returns whether the query attends to the key. There is no padding, so that `attention_mask` must be None or
    hide nothing.
    """
    if attention_mask is not None and not _call.get().has_mask:
        raise unsupported("it has a mask of its own")
    if mask_function is causal_mask_function:
        return None
    queries = (torch.arange(q_length) + q_offset)[None, None, :, None]
    keys = torch.arange(kv_length)
    if kv_length == _call.get().ring:
        keys = _positions_in_ring(keys, q_offset + q_length - 1)
    zero = torch.zeros(1, dtype=torch.int64)
    is_visible = mask_function(zero[:, None, None, None], zero[None, :, None, None], queries, keys[None, None, None, :])
    if kv_length == _call.get().ring:
        is_visible = is_visible & (keys >= 0)
    return torch.where(is_visible, 0.0, _LOWEST)


def _positions_in_ring(slots: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """The position of the token in each slot of a ring; a negative number for an empty slot. `last` is the position of
    the last token, int64 []."""
    size = slots.shape[0]
    round_start = last // size * size
    return torch.where(slots <= last - round_start, slots + round_start, slots + round_start - size)
