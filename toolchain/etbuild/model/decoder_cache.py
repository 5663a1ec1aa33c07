"""Gives a decoder of transformers a cache in its buffers: keys and values, and states.

The decoder's `forward` becomes `forward(input_ids, cache_position)`. `input_ids` is int64 [1, seq]. `cache_position`
is int64 [1]: the position of the first of these tokens. It returns scores: float [1, seq, vocabulary], or only those
of the last token, [1, vocabulary].
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from etbuild.errors import DocumentPath, InputError
from etbuild.model import decoder_inputs, position_tables, state_cache, static_cache
from etbuild.model.complex_pairs import as_pairs
from etbuild.plan.parts import DecoderCache, HuggingFace

_PATH: DocumentPath = ("model", "huggingface")
_CACHE: DocumentPath = (*_PATH, "cache")

Keywords = Callable[[Any, torch.Tensor, Any, torch.Tensor], dict[str, object]]
"""Makes the inputs of the original `forward` for one call: of the model, what the new `forward` takes, transformers'
cache, and the position of the first token, int64 [1]."""


Token = Callable[[Any], torch.Tensor]
"""Makes one token of a model, as the new `forward` takes it."""


def _of_tokens(model: Any, tokens: torch.Tensor, cache: Any, position: torch.Tensor) -> dict[str, object]:
    return {"input_ids": tokens}


def _token(model: Any) -> torch.Tensor:
    return torch.zeros((1, 1), dtype=torch.int64)


def attention(config: Any, wanted: HuggingFace) -> str | None:
    """The attention of a model; None for that of transformers. A model whose layers keep states only has none.

    Args:
        config: The configuration of the model.
        wanted: What the manifest says about it.
    """
    if wanted.cache is None or wanted.cache.kind is None or _keeps_keys(config, wanted.cache):
        return wanted.attention
    return None


def _keeps_keys(config: Any, cache: DecoderCache) -> bool:
    """Whether a layer of a decoder keeps keys and values."""
    layers = static_cache.layers_of(config.get_text_config(decoder=True), cache.max_length)
    return any(static_cache.keeps_keys(layer) for layer in layers)


def add(
    model: Any, wanted: HuggingFace, cache: DecoderCache, keywords: Keywords = _of_tokens, token: Token = _token
) -> Callable[..., torch.Tensor]:
    """Adds the buffers of a cache to a decoder.

    Args:
        model: The decoder. It is changed in place.
        wanted: What the manifest says about it.
        cache: The cache.
        keywords: Makes the inputs of the original `forward` besides its cache.
        token: Makes one token, as `keywords` takes it.

    Returns:
        The new `forward` of its class.

    Raises:
        InputError: The model is not a decoder with a cache, or the cache does not fit it.
    """
    config = model.config.get_text_config(decoder=True)
    _check(model, config, cache)
    position_tables.replace(model, cache.max_length)
    needed = decoder_inputs.needed(model, config, cache.max_length, keywords is _of_tokens)
    scored = _Scored(_scores(model, wanted.logits, _with(keywords, needed.names, cache.max_length)), token)
    if cache.kind is not None and _keeps_keys(model.config, cache):
        return _add_own(model, config, cache, scored, needed)
    return _add_static(model, config, cache, scored, needed.number)


def _with(keywords: Keywords, names: tuple[str, ...], length: int) -> Keywords:
    """The inputs of the original `forward`, with those that the decoder needs beside its tokens."""

    def more(model: Any, given: torch.Tensor, cache: Any, position: torch.Tensor) -> dict[str, object]:
        own = keywords(model, given, cache, position)
        return {**decoder_inputs.made(names, given.shape[1], position, length), **own} if names else own

    return more


def _check(model: Any, config: Any, cache: DecoderCache) -> None:
    if not model.can_generate() or config.is_encoder_decoder:
        message = f"`{type(model).__name__}` is not a decoder with a cache"
        raise InputError.at(_CACHE, message, "leave out `cache`, or choose a class such as LlamaForCausalLM")
    limits = {key: getattr(config, key, None) for key in ("max_position_embeddings", "max_seq_len")}
    for key, limit in limits.items():
        if isinstance(limit, int) and 0 < limit < cache.max_length:  # XLNet's is -1: none
            message = f"max_length {cache.max_length} is more than the configuration's `{key}` {limit}"
            raise InputError.at((*_CACHE, "max_length"), message, f"write {limit} or less")


def _scores(model: Any, logits: str | None, keywords: Keywords) -> Callable[..., torch.Tensor]:
    """A function that calls the original `forward` of the model with a cache, and returns its scores. Raises InputError
    if the model cannot compute the scores of the last token only."""
    original = type(model).forward
    known = inspect.signature(original).parameters
    more: dict[str, object] = {} if logits is None else {"logits_to_keep": 1}
    if more.keys() - known:
        message = f"`{type(model).__name__}` computes the scores of all tokens"
        raise InputError.at((*_PATH, "logits"), message, "write `logits: all`")

    def scores(self: Any, given: torch.Tensor, cache: Any, position: torch.Tensor) -> torch.Tensor:
        own = {**keywords(self, given, cache, position), **more}
        own["cache_params" if "cache_params" in known else "past_key_values"] = cache
        with as_pairs():
            found: torch.Tensor = original(self, **own, use_cache=True).logits
        return found[:, -1] if more else found

    return scores


@dataclass(frozen=True)
class _Scored:
    """How a model computes scores.

    Attributes:
        scores: Calls the original `forward` with a cache, and returns the scores.
        token: Makes one token.
    """

    scores: Callable[..., torch.Tensor]
    token: Token

    def of_one_token(self, attention: str | None = None) -> static_cache.Call:
        """Calls a model with one token and a cache, and with another attention than its own."""

        def call(copied: Any, cache: Any) -> object:
            if attention is not None:
                copied.set_attn_implementation(attention)
            return self.scores(copied, self.token(copied), cache, torch.tensor([0]))

        return call


def _add_static(model: Any, config: Any, wanted: DecoderCache, scored: _Scored, number: bool) -> Callable[..., Any]:
    """Adds the buffers of transformers' own static cache."""
    static_cache.add(model, config, wanted.max_length, scored.of_one_token())
    model.etbuild_cache.number_up_to = wanted.max_length if number else None

    def forward(self: Any, input_ids: torch.Tensor, cache_position: torch.Tensor) -> torch.Tensor:
        with static_cache.calling(self, cache_position) as cache:
            return scored.scores(self, input_ids, cache, cache_position)

    return forward


def _add_own(
    model: Any, config: Any, wanted: DecoderCache, scored: _Scored, needed: decoder_inputs.Needed
) -> Callable[..., Any]:
    """Adds ExecuTorch's modules for caches. Raises InputError if the kind of the cache does not fit the model."""
    from transformers.configuration_utils import get_head_shapes

    from etbuild.model import custom_attention

    if wanted.kind == "quantized" and model.dtype != torch.float32:
        message = (
            f"a quantized cache needs a model in float32; this one is in {str(model.dtype).removeprefix('torch.')}"
        )
        raise InputError.at((*_CACHE, "kind"), message, "write `dtype: float32` in `model`")
    layers = static_cache.layers_of(config, wanted.max_length)
    if any(state_cache.has_states(layer) for layer in layers):
        static_cache.shown_by_call(model, layers, wanted.max_length, scored.of_one_token("eager"))
    keyed = {index: layer.is_sliding for index, layer in enumerate(layers) if static_cache.keeps_keys(layer)}
    heads, sizes = (shape if isinstance(shape, list) else [shape] * len(layers) for shape in get_head_shapes(config))
    ring = _ring(config, wanted, any(keyed.values())) if wanted.kind == "ring" else None
    lengths = {index: ring if ring is not None and sliding else wanted.max_length for index, sliding in keyed.items()}
    model.kv_caches = torch.nn.ModuleDict(
        {
            str(index): custom_attention.make_store(wanted.kind, length, (heads[index], sizes[index]), model.dtype)
            for index, length in lengths.items()
        }
    )

    def forward(self: Any, input_ids: torch.Tensor, cache_position: torch.Tensor) -> torch.Tensor:
        stores = tuple(self.kv_caches[str(index)] if index in keyed else None for index in range(len(layers)))
        call = custom_attention.ModelCall(cache_position, stores, ring, wanted.longest_call, needed.has_mask)
        with custom_attention.calling(self, call) as cache:
            cache.number_up_to = wanted.max_length if needed.number else None
            return scored.scores(self, input_ids, cache, cache_position)

    return forward


def _ring(config: Any, wanted: DecoderCache, has_window: bool) -> int | None:
    """The number of positions of a ring: those that the first token of a call sees, and those of the call. None if it
    would hold as much as the whole cache."""
    window = getattr(config, "sliding_window", None) or getattr(config, "attention_chunk_size", None)
    if not has_window or window is None:
        message = f"`{type(config).__name__}` has no layers with a sliding window"
        raise InputError.at((*_CACHE, "kind"), message, "write `kind: custom`")
    length: int = window - 1 + wanted.longest_call
    return length if length < wanted.max_length else None
