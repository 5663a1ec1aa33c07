"""Runs a decoder of transformers with ExecuTorch's attention operators and its key-value caches.

transformers finds an attention by its name in `AttentionInterface`, and the function that makes its masks by the same
name in `AttentionMaskInterface`. A cache of it has a layer for each layer of the model. Here, each layer is a module of
ExecuTorch's `custom_kv_cache`, so that its buffers are those of the model. They have the shape [1, positions, heads,
head size], which `llama::custom_sdpa` takes as it is.
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
from etbuild.model.state_cache import StateCache, states_only

NAME = "executorch_custom_sdpa"
"""The name of the attention in transformers."""

_IGNORED = frozenset({"cache_position", "dropout", "is_causal", "position_ids", "sliding_window", "use_cache"})
"""What models give to an attention in addition and what the operators do not need: masks hold the window."""

_LOWEST = torch.finfo(torch.float32).min  # as in transformers' own masks: -inf minus -inf would be NaN
_PATH: DocumentPath = ("model", "huggingface", "attention")


def unsupported(why: str) -> BuildError:
    """The error for a model whose attention needs something that ExecuTorch's operators do not compute.

    Args:
        why: What it needs.
    """
    hint = "write `attention: sdpa` or `attention: eager`, and `kind: static` for the cache"
    return BuildError.at(_PATH, f"`custom_sdpa` cannot compute the attention of this model: {why}", hint)


@dataclass(frozen=True)
class ModelCall:
    """One call of a model.

    Attributes:
        position: The position of the first token, int64 [1].
        stores: The cache of each layer; None for a layer without keys and values.
        ring: The number of positions of a ring; None if no layer has one.
        longest: The largest number of tokens in one call.
        has_mask: Whether the model is given a mask, which hides nothing.
        updated: The `id` of each cache that got new keys and values.
        attended: The `id` of each cache that the attention has read.
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
    """Yields the cache for one call of a model. The attention finds the call while this is open.

    Args:
        model: The model, which has the states of its layers, if they keep any.
        call: The call.

    Raises:
        BuildError: The model has an attention of its own, which does not know the caches or their layout.
    """
    token = _call.set(call)
    try:
        cache = StateCache([states_only() if store is None else _Layer(store, call) for store in call.stores])
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
    """Adds the attention and its masks to those of transformers."""
    from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _mask)


def make_store(kind: str | None, length: int, shape: tuple[int, int], dtype: torch.dtype) -> torch.nn.Module:
    """The cache of one layer: a module of ExecuTorch, with buffers that no file of weights holds.

    Args:
        kind: The kind of the cache in the manifest. `quantized` has 8 bits for each value, with a scale for each token
            and head; the others have the dtype of the model.
        length: The number of positions.
        shape: The number of heads of keys and values, and their size.
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


class _Layer(CacheLayerMixin):  # type: ignore[misc]  # transformers has no types
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

        Returns those of all tokens, [1, positions, heads, size].
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
        """The number of positions, and the first one."""
        return self.length, 0

    def get_seq_length(self) -> Any:
        """The number of tokens before this call, int64 []."""
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
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """The attention of one layer, [1, seq, heads, size]. The queries are [1, heads, seq, size].

    `_Layer.update` has returned the keys and values, and `_mask` the mask. Raises BuildError if the model gives
    something else that would change the result.
    """
    refused = sorted(name for name, given in others.items() if given is not None and not _is_ignored(name))
    call = _call.get()
    if refused:
        raise unsupported(f"it computes with {' and '.join(f'`{name}`' for name in refused)}")
    stores = (store for store in call.stores if store is not None)
    store = next((store for store in stores if store.k_cache is key and store.v_cache is value), None)
    if store is None:
        raise unsupported(f"`{type(module).__name__}` does not attend to what its cache holds")
    call.attended.add(id(store))
    if attention_mask is None and not (others.get("is_causal", True) and getattr(module, "is_causal", True)):
        raise unsupported("its tokens attend to later ones")
    mask = None if attention_mask is None else attention_mask[0, 0]
    if mask is None and store.max_context_length == call.ring:
        raise unsupported(f"`{type(module).__name__}` attends to tokens outside of its window")
    if key.dtype == torch.int8:
        return _quantized(query, store, mask, scaling, call), None
    start = call.position[0].item() if mask is None else 0
    return torch.ops.llama.custom_sdpa(query.transpose(1, 2), key, value, start, mask, 0.0, mask is None, scaling), None


def _is_ignored(name: str) -> bool:
    """Whether the result does not depend on what a model gives under this name, such as `output_router_logits`."""
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
    **others: Any,
) -> torch.Tensor | None:
    """The mask of all layers of one kind: float32 [1, 1, seq, positions], or None if it is the causal mask.

    `q_offset` is the position of the first new token, int64 []. The mask function says of indices of batch, head, query
    and key whether the query attends to the key. There is no padding, so that `attention_mask` must be None, or a mask
    that hides nothing.
    """
    if attention_mask is not None and not _call.get().has_mask:
        raise unsupported("it has a mask of its own")
    if mask_function is causal_mask_function:
        return None
    queries = (torch.arange(q_length) + q_offset)[None, None, :, None]
    keys = torch.arange(kv_length)
    if kv_length == _call.get().ring:
        keys = _positions(keys, q_offset + q_length - 1)
    zero = torch.zeros(1, dtype=torch.int64)
    sees = mask_function(zero[:, None, None, None], zero[None, :, None, None], queries, keys[None, None, None, :])
    if kv_length == _call.get().ring:
        sees = sees & (keys >= 0)
    return torch.where(sees, 0.0, _LOWEST)


def _positions(slots: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """The position of the token in each slot of a ring, or a negative number if the slot is empty. `last` is the
    position of the last token, int64 []."""
    size = slots.shape[0]
    turn = last // size * size
    return torch.where(slots <= last - turn, slots + turn, slots + turn - size)
