"""What a decoder of transformers gets beside its tokens and its cache: the positions of the tokens, and maybe a mask.

Decoders find positions by themselves from the number of tokens in the cache, but some begin at 0 in each call. So each
gets `position_ids`, as from transformers' `generate`. If a decoder still makes a tensor of the number of tokens in the
cache, its shape depends on a value, which a program cannot have. Such a decoder gets an `attention_mask` for all tokens
that the cache can hold. Others compute indices from this number in Python, such as `max(0, 1 - number)`. They get it as
an integer whose limits are known, in place of a tensor.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from etbuild.model.state_cache import has_states, number
from etbuild.patching import replaced

_POSITIONS, _MASK = "position_ids", "attention_mask"


@dataclass(frozen=True)
class Needed:
    """What a decoder needs.

    Attributes:
        names: The names of the inputs beside its tokens and its cache.
        number: Whether it needs the number of tokens in the cache as an integer.
    """

    names: tuple[str, ...]
    number: bool = False

    @property
    def has_mask(self) -> bool:
        """Whether a mask is among the inputs. It hides nothing."""
        return _MASK in self.names


def needed(model: Any, config: Any, length: int, takes_tokens: bool) -> Needed:
    """What a decoder needs. Nothing is computed.

    Args:
        model: The decoder, with transformers' own `forward`.
        config: The configuration of its decoder.
        length: The number of tokens that the cache holds.
        takes_tokens: Whether its inputs are tokens. With others, it gets no mask from here.
    """
    taken = inspect.signature(type(model).forward).parameters
    names = tuple(name for name in (_POSITIONS,) if name in taken)
    least = Needed(names)
    if not takes_tokens or _MASK not in taken or not _depends_on_position(model, config, length, least):
        return least
    with_mask, with_number = Needed((*names, _MASK)), Needed(names, number=True)
    if not _depends_on_position(model, config, length, with_mask):
        return with_mask
    return with_number if _depends_on_position(model, config, length, with_number) is False else least


def made(names: tuple[str, ...], seq: Any, position: torch.Tensor, length: int) -> dict[str, torch.Tensor]:
    """The inputs of one call.

    Args:
        names: Their names.
        seq: The number of tokens in the call.
        position: The position of the first one, int64 [1].
        length: The number of tokens that the cache holds.
    """
    makers: dict[str, Callable[[], torch.Tensor]] = {
        _POSITIONS: lambda: (torch.arange(seq) + position)[None],
        _MASK: lambda: torch.ones((1, length), dtype=torch.int64),  # the causal mask hides later tokens
    }
    return {name: makers[name]() for name in names}


def _depends_on_position(model: Any, config: Any, length: int, given: Needed) -> bool | None:
    """Whether a decoder with these inputs reads the value of the position. None if it cannot be called without
    values, and for one that keeps states."""
    from torch._subclasses.fake_tensor import DataDependentOutputException, FakeCopyMode, FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv

    from etbuild.model import static_cache

    layers = static_cache.layers_of(config, length)
    if any(has_states(layer) for layer in layers):
        return None
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv() if given.number else None)
    position = mode.from_tensor(torch.tensor([0]))  # a tensor without a value
    try:
        with FakeCopyMode(mode):
            copied = copy.deepcopy(model)
        copied.set_attn_implementation("eager")
        with torch.no_grad(), replaced(torch.compiler, "is_compiling", lambda: True), mode:  # as in an export
            before = number(position[0], length) if given.number else position[0]
            cache, tokens = _cache(len(layers), length, before), torch.zeros((1, 1), dtype=torch.int64)
            copied(input_ids=tokens, past_key_values=cache, use_cache=True, **made(given.names, 1, position, length))
    except (DataDependentOutputException, GuardOnDataDependentSymNode):
        return True
    except Exception:  # noqa: BLE001 - if it is a mistake, the first real call tells it
        return None
    return False


def _cache(count: int, length: int, tokens_before: Any) -> Any:
    """A static cache of transformers with a number of layers, which says that it has this number of tokens."""
    from transformers.cache_utils import Cache, StaticLayer

    class Layer(StaticLayer):  # type: ignore[misc]  # transformers has no types
        def get_seq_length(self) -> Any:
            return tokens_before

    return Cache(layers=[Layer(length) for _ in range(count)])
