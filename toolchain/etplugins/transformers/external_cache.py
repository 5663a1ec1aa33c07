"""Gives a decoder of transformers a cache that its caller holds, for delegates and runners that keep nothing.

The decoder's `forward` becomes `forward(input_ids, position_ids, others)`. `input_ids` and `position_ids` are int64
[1, seq]. `others` is a list of tensors in the order of `ExternalCache.names`: masks, float [1, 1, seq, max_length +
seq], which are added to the scores of attention; keys and values, [1, heads, max_length, size]; and states. `forward`
returns the scores, and then, in the same order, the keys and values of its own tokens, [1, heads, seq, size], and the
new states. The first columns of a mask are those of the cache, the others those of the call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.cache_utils import CacheLayerMixin

from etbuild.errors import BuildError, DocumentPath
from etbuild.plan.parts import ModelExample
from etplugins.transformers import static_cache
from etplugins.transformers.parts import HIDDEN
from etplugins.transformers.state_cache import StateCache, states_only

_KIND: DocumentPath = ("model", "huggingface", "cache", "kind")
_PROBE = "executorch_external"
_MASKS = {False: "attention_mask", True: "sliding_attention_mask"}
_KINDS = {False: "full_attention", True: "sliding_attention"}
"""The mask of layers that attend to all tokens, and of those with a window; and transformers' names of these layers."""
_WINDOWS = ("sliding_window", "attention_chunk_size")

Scores = Callable[[Any, torch.Tensor, Any, torch.Tensor], torch.Tensor]
"""Calls the original `forward` with tokens, a cache and positions, and returns the scores."""


def unsupported(reason: str) -> BuildError:
    """The error for a model whose cache cannot be an input.

    Args:
        reason: The cause, as a sentence.
    """
    message = f"the cache of this model cannot be an input of its methods: {reason}"
    return BuildError.at(_KIND, message, "write `kind: static`")


@dataclass(frozen=True)
class ExternalCache:
    """The inputs of a method besides tokens and positions.

    Attributes:
        masks: The name of each mask, with the kinds of layers that read it, as the decoder may call them.
        held: The keys, values and states that the caller holds, by name: tensors without memory.
        length: The number of tokens that the caller holds.
        sliding: For each layer with keys, by its index, whether it has a window.
    """

    masks: dict[str, list[str]]
    held: dict[str, torch.Tensor]
    length: int
    sliding: dict[int, bool]

    def of_first(self, layers: int) -> ExternalCache:
        """What the first layers read and write."""
        masks = {_MASKS[is_sliding] for index, is_sliding in self.sliding.items() if index < layers}
        return replace(
            self,
            masks={name: kinds for name, kinds in self.masks.items() if name in masks},
            held={name: each for name, each in self.held.items() if int(name.rpartition("_")[2]) < layers},
        )

    @property
    def names(self) -> list[str]:
        """The names of `others`."""
        return [*self.masks, *self.held]

    def example(self, seq: int) -> list[torch.Tensor]:
        """Zeros for a call of `seq` tokens, and masks that show half of the cache and the tokens before each."""
        dtype = next(iter(self.held.values())).dtype
        is_empty = (torch.arange(self.length) >= self.length // 2).expand(seq, -1)
        hidden = torch.cat([is_empty, torch.ones(seq, seq).triu(1).bool()], dim=1)
        masks = [torch.zeros(1, 1, *hidden.shape, dtype=dtype).masked_fill(hidden, HIDDEN) for _ in self.masks]
        return [*masks, *(torch.zeros(each.shape, dtype=each.dtype) for each in self.held.values())]


class _Layer(CacheLayerMixin):  # type: ignore[misc]  # transformers has no types
    """The keys and values of one layer in one call, [1, heads, tokens, size]."""

    is_compileable = True

    def __init__(self, call: GivenCache, index: int, is_sliding: bool) -> None:
        super().__init__()
        self.call, self.index, self.is_sliding = call, index, is_sliding
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Does nothing: the caller has the tensors."""

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> Any:
        """Keeps the keys and values of the new tokens, and returns those of all tokens."""
        parts = {f"key_cache_{self.index}": key_states, f"value_cache_{self.index}": value_states}
        self.call.new |= parts
        return tuple(torch.cat([self.call.given[name], part], dim=-2) for name, part in parts.items())

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.call.spec.length + query_length, 0

    def get_seq_length(self) -> Any:
        return self.call.position[0]

    def get_max_length(self) -> int:
        return self.call.spec.length


class _States:
    """The states of one layer in one call. The caller begins a text with zeros."""

    def __init__(self, call: GivenCache, index: int) -> None:
        self.call, self.index = call, index

    def read(self, name: str, position: torch.Tensor) -> torch.Tensor | None:
        """The state before the call."""
        return self.call.given[f"{name}_{self.index}"]

    def write(self, name: str, value: torch.Tensor) -> None:
        """Keeps the state after the call."""
        self.call.new[f"{name}_{self.index}"] = value


class GivenCache(StateCache):
    """The cache of one call.

    Attributes:
        given: The masks, keys, values and states that the caller gives, by name.
        new: The keys and values of the tokens of the call, and the new states, by name.
        position: The position of the first token, int64 [1].
    """

    def __init__(self, spec: ExternalCache, layers: int, given: Mapping[str, Any], position: torch.Tensor) -> None:
        sliding = spec.sliding
        super().__init__(
            [_Layer(self, index, sliding[index]) if index in sliding else states_only() for index in range(layers)]
        )
        self.spec, self.given, self.position, self.new = spec, given, position, dict[str, torch.Tensor]()
        self.states = [_States(self, index) for index in range(layers)]

    @property
    def mask(self) -> Any:
        """The `attention_mask` of the decoder: one tensor, or one for each kind of layers."""
        masks = self.spec.masks
        if len(masks) < len(_MASKS):
            return next((self.given[name] for name in masks), None)
        return {kind: self.given[name] for name, kinds in masks.items() for kind in kinds}


def add(
    model: Any,
    config: Any,
    length: int,
    shown: static_cache.Call,
    scores: dict[str, Scores],
    draft_layers: int | None = None,
) -> dict[str, Any]:
    """Makes a decoder take its cache.

    Args:
        model: The decoder. It is changed in place.
        config: The configuration of the decoder.
        length: The number of tokens that the caller holds.
        shown: Calls a copy of the model with one token and a cache of transformers.
        scores: Makes the scores of each new method, by its name.
        draft_layers: How many layers the method `draft` runs; None if there is none. It takes only their caches.

    Returns:
        The new methods for the class of the model, by name.

    Raises:
        InputError: The model reads no cache, or caches something other than keys, values and states.
        BuildError: The attention does not take a mask and a cache from its caller.
    """
    layers = static_cache.layers_of(config, length)
    spec = _spec(model, config, layers, length, shown)
    model.etbuild_external = spec
    model.etbuild_drafts = None if draft_layers is None else spec.of_first(draft_layers)

    def method(scores_of: Scores, spec: ExternalCache) -> Callable[..., Any]:
        def call(self: Any, input_ids: torch.Tensor, position_ids: torch.Tensor, others: list[Any]) -> tuple[Any, ...]:
            given = dict(zip(spec.names, others, strict=True))
            cache = GivenCache(spec, len(layers), given, position_ids[0, :1])
            with cache.at(cache.position, self):
                found = scores_of(self, input_ids, cache, position_ids)
            return found, *(cache.new[name] for name in spec.held)

        return call

    _check_attention(model, spec, len(layers), next(iter(scores.values())))
    of_methods = {"draft": model.etbuild_drafts}
    methods = {name: method(each, of_methods.get(name, spec)) for name, each in scores.items()}
    return {**methods, "example_of_part": _example}


def _example(model: Any, example_plan: ModelExample) -> Any:
    assert example_plan.length is not None, "the task writes it"
    specs = {"caches": model.etbuild_external, "draft_caches": model.etbuild_drafts}
    spec: ExternalCache | None = specs.get(str(example_plan.of_model))
    return None if spec is None else spec.example(example_plan.length)


def _spec(model: Any, config: Any, layers: list[Any], length: int, shown: static_cache.Call) -> ExternalCache:
    """Finds the inputs of a decoder."""
    static_cache.add(model, config, length, shown)
    held: dict[str, torch.Tensor] = {}
    for index in range(len(layers)):
        names = [name for name in (f"key_cache_{index}", f"value_cache_{index}") if hasattr(model, name)]
        held |= {name: model.get_buffer(name).to("meta") for name in names}
        for name in names:
            delattr(model, name)
        states = dict(model.states[index].named_buffers()) if hasattr(model, "states") else {}
        held |= {f"{name}_{index}": state.to("meta") for name, state in states.items()}
    if hasattr(model, "states"):
        del model.states
    del model.etbuild_cache
    sliding = {index: layer.is_sliding for index, layer in enumerate(layers) if static_cache.keeps_keys(layer)}
    kinds = getattr(config, "layer_types", None) or [""] * len(layers)
    masks = {
        name: sorted({_KINDS[of_window], *(kinds[index] for index in sliding if sliding[index] == of_window)})
        for of_window, name in _MASKS.items()
        if of_window in sliding.values()
    }
    return ExternalCache(masks, held, length, sliding)


def _check_attention(model: Any, spec: ExternalCache, layers: int, scores: Scores) -> None:
    """Checks that each attention reads the mask of the call, and computes nothing else from the places of keys. Such a
    model has transformers' interface for attention."""
    given = {name: torch.zeros((), dtype=each.dtype).expand(each.shape) for name, each in spec.held.items()}
    given |= dict(zip(spec.masks, spec.example(1), strict=False))
    seen: list[bool] = []

    def attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> Any:
        biases = [each.shape[-1] for each in options.values() if isinstance(each, torch.Tensor) and each.dim() > 1]
        seen.append(any(attention_mask is given[name] for name in spec.masks) and key.shape[-2] not in biases)
        return torch.zeros((*query.shape[:-1], value.shape[-1]), dtype=query.dtype).transpose(1, 2), None

    def call(copied: Any, cache: Any) -> None:
        copied.set_attn_implementation(_PROBE)
        scores(copied, torch.zeros((1, 1), dtype=torch.int64), cache, torch.zeros((1, 1), dtype=torch.int64))

    if not spec.masks:
        return
    AttentionInterface.register(_PROBE, attend)
    error = static_cache.error_of_call(model, GivenCache(spec, layers, given, torch.tensor([0])), call)
    if error is not None:
        raise unsupported("it reads the position of a call in Python, or has an attention of its own") from error
    if len(seen) < len(spec.sliding) or not all(seen):
        raise unsupported(f"the attention of `{type(model).__name__}` computes with more than the mask of a call")


def constants(model: Any, drafts: Sequence[str]) -> dict[str, object]:
    """What a runner has to know, as constant methods: the names of all inputs and outputs in their order, as JSON, also
    those of methods with fewer, and the window of `sliding_attention_mask`.

    Args:
        model: The decoder.
        drafts: The names of the methods that draft.
    """
    spec: ExternalCache = model.etbuild_external
    config = model.config.get_text_config(decoder=True)
    specs = {"": spec, **{f"{name}_": model.etbuild_drafts for name in drafts}}
    windows = {f"get_{key}": getattr(config, key, None) for key in _WINDOWS if _MASKS[True] in spec.masks}
    return {
        **{
            f"get_{of}input_names": json.dumps(["input_ids", "position_ids", *each.names]) for of, each in specs.items()
        },
        **{f"get_{of}output_names": json.dumps(["scores", *each.held]) for of, each in specs.items()},
        **{name: size for name, size in windows.items() if isinstance(size, int)},
    }
