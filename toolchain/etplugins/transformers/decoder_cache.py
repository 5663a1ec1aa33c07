"""Gives a decoder of transformers a cache in its buffers: keys and values, and states.

The decoder's `forward` becomes `forward(input_ids, cache_position)`. `input_ids` is int64 [1, seq], and
`cache_position`, int64 [1], is the position of the first of these tokens. `forward` returns scores: float [1, seq,
vocabulary], or [1, vocabulary] for the last token only. `verify` is the same with the scores of all tokens, and `draft`
with those of the first layers. With a cache of the kind `external`, they have the inputs and outputs of
`external_cache`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from etbuild.errors import DocumentPath, InputError
from etplugins.transformers import (
    decoder_inputs,
    external_cache,
    first_layers,
    first_positions,
    frequencies,
    position_tables,
    state_cache,
    static_cache,
)
from etplugins.transformers.parts import DecoderCache, HuggingFace

_PATH: DocumentPath = ("model", "huggingface")
_CACHE: DocumentPath = (*_PATH, "cache")

Keywords = Callable[[Any, torch.Tensor, Any, torch.Tensor], dict[str, object]]
"""Makes the inputs of the original `forward` for one call. Takes the model, the input of the new `forward`,
transformers' cache, and the position of the first token, int64 [1]."""


Scores = external_cache.Scores
Token = Callable[[Any], torch.Tensor]
"""Takes the model, and makes an input of the new `forward` with one token."""


def _token_inputs(model: Any, tokens: torch.Tensor, cache: Any, position: torch.Tensor) -> dict[str, object]:
    return {"input_ids": tokens}


def _one_token(model: Any) -> torch.Tensor:
    return torch.zeros((1, 1), dtype=torch.int64)


def attention(config: Any, settings: HuggingFace) -> str | None:
    """The attention that the manifest chooses; None for transformers' default, or if all layers keep only states. For a
    cache of the caller, `eager` is the default: it only adds the mask, and has no operators for rows without a token.

    Args:
        config: The configuration of the model.
        settings: The model in the plan.
    """
    if settings.has_external_cache:
        return settings.attention or "eager"
    if settings.cache is None or settings.cache.kind is None or _keeps_keys(config, settings.cache):
        return settings.attention
    return None


def _keeps_keys(config: Any, cache: DecoderCache) -> bool:
    """Whether a layer of a decoder keeps keys and values."""
    layers = static_cache.layers_of(config.get_text_config(decoder=True), cache.max_length)
    return any(static_cache.keeps_keys(layer) for layer in layers)


def has_states(model: Any, cache: DecoderCache) -> bool:
    """Whether a layer of a decoder keeps more than keys and values."""
    layers = static_cache.layers_of(model.config.get_text_config(decoder=True), cache.max_length)
    return any(map(state_cache.has_states, layers))


def add(
    model: Any,
    settings: HuggingFace,
    cache: DecoderCache,
    keywords: Keywords = _token_inputs,
    token: Token = _one_token,
) -> dict[str, Callable[..., Any]]:
    """Adds a cache to a decoder: buffers, or inputs and outputs.

    Args:
        model: The decoder. It is changed in place.
        settings: The model in the plan.
        cache: The cache in the plan.
        keywords: Makes the inputs of the original `forward` besides its cache.
        token: Makes an input with one token, for `keywords`.

    Returns:
        The new methods for the class of the model, by name.

    Raises:
        InputError: The model is not a decoder with a cache, or the cache does not fit it.
    """
    config = model.config.get_text_config(decoder=True)
    _check(model, config, cache)
    first = first_positions.of(model, cache.max_length)
    position_tables.replace(model, cache.max_length)
    frequencies.keep(model, cache.max_length)
    inputs = decoder_inputs.find(model, config, cache.max_length, keywords is _token_inputs)
    complete = _with_inputs(keywords, inputs.names, cache.max_length, first)
    scored = _ScoredModel(_scores(model, settings.logits, complete), token)
    given = _given_inputs(decoder_inputs.positions(model), first) if settings.has_external_cache else complete
    scores = {"forward": _scores(model, settings.logits, given), "verify": _scores(model, None, given)}
    if settings.draft_layers is not None:
        scores["draft"] = first_layers.scores(model, config, settings.draft_layers, scores["forward"])
    if settings.has_external_cache:
        shown = scored.of_one_token()
        return external_cache.add(model, config, cache.max_length, shown, scores, settings.draft_layers)
    is_own = cache.kind is not None and _keeps_keys(model.config, cache)
    made = (_add_own if is_own else _add_static)(model, config, cache, scored, inputs)
    return {name: made(each) for name, each in scores.items()}


def _given_inputs(positions: tuple[str, ...], first: int) -> Keywords:
    """The inputs of a decoder whose caller gives the cache: the positions, if it takes them, and the mask. The caller
    counts positions from 0, and the decoder from `first`."""

    def given(model: Any, tokens: torch.Tensor, cache: Any, position_ids: torch.Tensor) -> dict[str, object]:
        own = position_ids + first if first else position_ids
        return {"input_ids": tokens, **dict.fromkeys(positions, own), "attention_mask": cache.mask}

    return given


def _with_inputs(keywords: Keywords, names: tuple[str, ...], length: int, first: int) -> Keywords:
    """Adds the named inputs that a decoder needs besides its tokens to those that `keywords` makes. The decoder counts
    positions from `first`."""

    def with_inputs(model: Any, call_input: torch.Tensor, cache: Any, position: torch.Tensor) -> dict[str, object]:
        call_inputs = keywords(model, call_input, cache, position)
        own = position + first if first else position
        others = decoder_inputs.make(names, call_input.shape[1], own, length) if names else {}
        return {**others, **call_inputs}

    return with_inputs


def _check(model: Any, config: Any, cache: DecoderCache) -> None:
    if not model.can_generate() or config.is_encoder_decoder:
        message = f"`{type(model).__name__}` is not a decoder with a cache"
        raise InputError.at(_CACHE, message, "leave out `cache`, or choose a class such as LlamaForCausalLM")
    _check_order(model, config)
    limits = {key: getattr(config, key, None) for key in ("max_position_embeddings", "max_seq_len")}
    for key, limit in limits.items():
        if isinstance(limit, int) and 0 < limit < cache.max_length:  # -1 means no limit, as in XLNet
            message = f"max_length {cache.max_length} is more than the configuration's `{key}` {limit}"
            raise InputError.at((*_CACHE, "max_length"), message, f"write {limit} or less")
    rope = getattr(config, "rope_parameters", None) or {}
    for each in (rope, *(of_kind for of_kind in rope.values() if isinstance(of_kind, dict))):  # of a kind of layers
        short = each.get("original_max_position_embeddings")
        if each.get("rope_type") == "longrope" and isinstance(short, int) and short < cache.max_length:
            message = f"with `longrope`, a text of more than {short} tokens changes the positions of all its tokens"
            raise InputError.at((*_CACHE, "max_length"), message, f"write {short} or less")


def _check_order(model: Any, config: Any) -> None:
    """Fails if a token attends to those after it, which a cache does not have yet."""
    # Layers that can be both keep the key. GPT-NeoX has it in its configuration only, and is always a decoder.
    keeps = any(getattr(layer, "is_decoder", None) is False for layer in model.modules())
    key = "is_decoder" if keeps and getattr(config, "is_decoder", None) is False else None
    attentions = [part for part in model.modules() if hasattr(part, "layer_idx") and hasattr(part, "is_causal")]
    if not any(part.is_causal for part in attentions):
        key = next((name for name, value in vars(config).items() if "bidirectional" in name and value), key)
    if key is not None:
        said, other = (str(each).lower() for each in (getattr(config, key), not getattr(config, key)))
        message = f"with `{key}: {said}`, each token of `{type(model).__name__}` attends to those after it"
        hint = f"leave out `cache`, or set `{key}: {other}` in `config` if the weights are those of a decoder"
        raise InputError.at(_CACHE, message, hint)


def _scores(model: Any, logits: str | None, keywords: Keywords) -> Scores:
    """A function that calls the original `forward` of the model with a cache, and returns the scores. Raises InputError
    if the manifest wants only the scores of the last token, and the model cannot compute them."""
    original = type(model).forward
    parameters = inspect.signature(original).parameters
    options: dict[str, object] = {} if logits is None else {"logits_to_keep": 1}
    if options.keys() - parameters:
        message = f"`{type(model).__name__}` computes the scores of all tokens"
        raise InputError.at((*_PATH, "logits"), message, "write `logits: all`")

    def scores(self: Any, call_input: torch.Tensor, cache: Any, position: torch.Tensor) -> torch.Tensor:
        arguments = {**keywords(self, call_input, cache, position), **options}
        arguments["cache_params" if "cache_params" in parameters else "past_key_values"] = cache
        result: torch.Tensor = original(self, **arguments, use_cache=True).logits
        return result[:, -1] if options else result

    return scores


@dataclass(frozen=True)
class _ScoredModel:
    """The functions that compute scores.

    Attributes:
        scores: Calls the original `forward` with a cache, and returns the scores.
        token: Makes an input with one token.
    """

    scores: Scores
    token: Token

    def of_one_token(self, attention: str | None = None) -> static_cache.Call:
        """A function that calls a model with one token and a cache; `attention` replaces the model's own."""

        def call(copied: Any, cache: Any) -> object:
            if attention is not None:
                copied.set_attn_implementation(attention)
            return self.scores(copied, self.token(copied), cache, torch.tensor([0]))

        return call


def _add_static(
    model: Any, config: Any, settings: DecoderCache, scored: _ScoredModel, inputs: decoder_inputs.DecoderInputs
) -> Callable[[Scores], Callable[..., Any]]:
    """Adds the buffers of transformers' own static cache."""
    static_cache.add(model, config, settings.max_length, scored.of_one_token())
    model.etbuild_cache.number_up_to = settings.max_length if inputs.number else None

    def method(scores: Scores) -> Callable[..., Any]:
        def forward(self: Any, input_ids: torch.Tensor, cache_position: torch.Tensor) -> torch.Tensor:
            with static_cache.calling(self, cache_position) as cache:
                return scores(self, input_ids, cache, cache_position)

        return forward

    return method


def _add_own(
    model: Any, config: Any, settings: DecoderCache, scored: _ScoredModel, inputs: decoder_inputs.DecoderInputs
) -> Callable[[Scores], Callable[..., Any]]:
    """Adds ExecuTorch's modules for caches. Raises InputError if the kind of the cache does not fit the model."""
    from transformers.configuration_utils import get_head_shapes

    from etplugins.transformers import custom_attention

    if settings.kind == "quantized" and model.dtype != torch.float32:
        message = (
            f"a quantized cache needs a model in float32; this one is in {str(model.dtype).removeprefix('torch.')}"
        )
        raise InputError.at((*_CACHE, "kind"), message, "write `dtype: float32` in `model`")
    layers = static_cache.layers_of(config, settings.max_length)
    if any(state_cache.has_states(layer) for layer in layers):
        static_cache.shown_by_call(model, layers, settings.max_length, scored.of_one_token("eager"))
    keyed = {index: layer.is_sliding for index, layer in enumerate(layers) if static_cache.keeps_keys(layer)}
    heads, sizes = (shape if isinstance(shape, list) else [shape] * len(layers) for shape in get_head_shapes(config))
    ring = _ring(config, settings, any(keyed.values())) if settings.kind == "ring" else None
    lengths = {index: ring if ring is not None and sliding else settings.max_length for index, sliding in keyed.items()}
    model.kv_caches = torch.nn.ModuleDict(
        {
            str(index): custom_attention.make_store(settings.kind, length, (heads[index], sizes[index]), model.dtype)
            for index, length in lengths.items()
        }
    )

    def method(scores: Scores) -> Callable[..., Any]:
        def forward(self: Any, input_ids: torch.Tensor, cache_position: torch.Tensor) -> torch.Tensor:
            stores = tuple(self.kv_caches[str(index)] if index in keyed else None for index in range(len(layers)))
            call = custom_attention.ModelCall(cache_position, stores, ring, settings.longest_call, inputs.has_mask)
            with custom_attention.calling(self, call) as cache:
                cache.number_up_to = settings.max_length if inputs.number else None
                return scores(self, input_ids, cache, cache_position)

        return forward

    return method


def _ring(config: Any, settings: DecoderCache, has_window: bool) -> int | None:
    """The number of positions of a ring: the window before the first token of a call, and the longest call. None if a
    ring would be as large as the whole cache."""
    window = getattr(config, "sliding_window", None) or getattr(config, "attention_chunk_size", None)
    if not has_window or window is None:
        message = f"`{type(config).__name__}` has no layers with a sliding window"
        raise InputError.at((*_CACHE, "kind"), message, "write `kind: custom`")
    length: int = window - 1 + settings.longest_call
    return length if length < settings.max_length else None
