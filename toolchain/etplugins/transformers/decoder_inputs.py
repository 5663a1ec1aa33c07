"""The inputs of a decoder of transformers besides its tokens and its cache: positions, and maybe a mask.

Decoders compute positions from the number of tokens in the cache, but some begin at 0 in each call. So each decoder
gets `position_ids`, as from transformers' `generate`. Some decoders also make a tensor whose size is the number of
tokens in the cache. A program cannot have such a tensor. These decoders get an `attention_mask` for all tokens that the
cache can hold. Others compute indices from this number in Python, such as `max(0, 1 - number)`. They get it as an
integer with known limits, and not as a tensor.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from etbuild.patching import replaced
from etplugins.transformers.state_cache import has_states, number

_POSITIONS, _MASK = "position_ids", "attention_mask"


@dataclass(frozen=True)
class DecoderInputs:
    """The inputs of a decoder besides its tokens and its cache.

    Attributes:
        names: The names of the inputs.
        number: Whether the decoder needs the number of tokens in the cache as an integer.
    """

    names: tuple[str, ...]
    number: bool = False

    @property
    def has_mask(self) -> bool:
        """Whether a mask is among the inputs. It hides nothing."""
        return _MASK in self.names


def find(model: Any, config: Any, length: int, takes_tokens: bool) -> DecoderInputs:
    """Finds the inputs that a decoder needs. Calls it with fake tensors only.

    Args:
        model: The decoder, with transformers' own `forward`.
        config: The configuration of the decoder.
        length: The number of tokens that the cache holds.
        takes_tokens: Whether the decoder takes tokens. A decoder of embeddings gets no mask here.
    """
    parameters = inspect.signature(type(model).forward).parameters
    names = tuple(name for name in (_POSITIONS,) if name in parameters)
    without_mask = DecoderInputs(names)
    if not takes_tokens or _MASK not in parameters or not _depends_on_position(model, config, length, without_mask):
        return without_mask
    with_mask, with_number = DecoderInputs((*names, _MASK)), DecoderInputs(names, number=True)
    if not _depends_on_position(model, config, length, with_mask):
        return with_mask
    return with_number if _depends_on_position(model, config, length, with_number) is False else without_mask


def make(names: tuple[str, ...], seq: Any, position: torch.Tensor, length: int) -> dict[str, torch.Tensor]:
    """The inputs of one call.

    Args:
        names: The names of the inputs.
        seq: The number of tokens in the call.
        position: The position of the first token, int64 [1].
        length: The number of tokens that the cache holds.
    """
    makers: dict[str, Callable[[], torch.Tensor]] = {
        _POSITIONS: lambda: (torch.arange(seq) + position)[None],
        _MASK: lambda: torch.ones((1, length), dtype=torch.int64),  # the causal mask hides later tokens
    }
    return {name: makers[name]() for name in names}


def _depends_on_position(model: Any, config: Any, length: int, decoder_inputs: DecoderInputs) -> bool | None:
    """Whether a decoder with these inputs reads the value of the position. None if it keeps states, or cannot be called
    with fake tensors."""
    from torch._subclasses.fake_tensor import DataDependentOutputException, FakeCopyMode, FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv

    from etplugins.transformers import static_cache

    layers = static_cache.layers_of(config, length)
    if any(has_states(layer) for layer in layers):
        return None
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv() if decoder_inputs.number else None)
    position = mode.from_tensor(torch.tensor([0]))  # a tensor without a value
    try:
        with FakeCopyMode(mode):
            copied = copy.deepcopy(model)
        copied.set_attn_implementation("eager")
        with torch.no_grad(), replaced(torch.compiler, "is_compiling", lambda: True), mode:  # as in an export
            before = number(position[0], length) if decoder_inputs.number else position[0]
            cache, tokens = _cache(len(layers), length, before), torch.zeros((1, 1), dtype=torch.int64)
            copied(
                input_ids=tokens,
                past_key_values=cache,
                use_cache=True,
                **make(decoder_inputs.names, 1, position, length),
            )
    except (DataDependentOutputException, GuardOnDataDependentSymNode):
        return True
    except Exception:  # noqa: BLE001 - the first real call shows the error
        return None
    return False


def _cache(count: int, length: int, tokens_before: Any) -> Any:
    """A static cache of transformers with `count` layers that says that it has `tokens_before` tokens."""
    from transformers.cache_utils import Cache, StaticLayer

    class CountedLayer(StaticLayer):  # type: ignore[misc]  # transformers has no types
        def get_seq_length(self) -> Any:
            return tokens_before

    return Cache(layers=[CountedLayer(length) for _ in range(count)])
