"""The inputs of a decoder of transformers besides its tokens and its cache: positions, and maybe a mask.

Decoders compute positions from the number of tokens in the cache, but some begin at 0 in each call. So each decoder
gets `position_ids`, which begin as `first_positions` says. Some decoders also make a tensor whose size is the number of
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

from etbuild.errors import DocumentPath, InputError
from etbuild.patching import replaced
from etplugins.transformers.families import family
from etplugins.transformers.state_cache import has_states, number

_POSITIONS, _MASK = "position_ids", "attention_mask"
_TASK: DocumentPath = ("model", "huggingface", "task")


@dataclass(frozen=True)
class DecoderInputs:
    """The inputs of a decoder besides its tokens and its cache.

    Attributes:
        names: The names of the inputs.
        number: Whether the decoder needs the number of tokens in the cache as an integer.
        only_written: Whether the cache gives the decoder only the tokens that it has, because the decoder makes no mask
            that hides the rest.
    """

    names: tuple[str, ...]
    number: bool = False
    only_written: bool = False

    @property
    def has_mask(self) -> bool:
        """Whether a mask is among the inputs. It hides nothing."""
        return _MASK in self.names


@dataclass(frozen=True)
class _Trial:
    """What a call with fake tensors shows.

    Attributes:
        reads_position: Whether the decoder reads the value of the position. None if it keeps states, or cannot be
            called with fake tensors.
        makes_mask: Whether the decoder asks the cache for the size of a mask.
    """

    reads_position: bool | None
    makes_mask: bool = True


Call = Callable[[Any, torch.Tensor, Any, torch.Tensor], object]
"""Calls a decoder with a token, int64 [1, 1], a cache of transformers, and the position, int64 [1]."""


def find(model: Any, config: Any, length: int, takes_tokens: bool) -> DecoderInputs:
    """Finds the inputs that a decoder needs. Calls it with fake tensors only.

    Args:
        model: The decoder, with transformers' own `forward`.
        config: The configuration of the decoder.
        length: The number of tokens that the cache holds.
        takes_tokens: Whether the decoder takes tokens. A decoder of embeddings gets no mask here.
    """

    def reads_position(inputs: DecoderInputs) -> bool | None:
        def call(copied: Any, tokens: torch.Tensor, cache: Any, position: torch.Tensor) -> object:
            others = make(inputs.names, 1, position, length)
            return copied(input_ids=tokens, past_key_values=cache, use_cache=True, **others)

        return _tried(model, config, length, inputs.number, call).reads_position

    parameters, names = inspect.signature(type(model).forward).parameters, positions(model)
    without_mask = DecoderInputs(names)
    if not takes_tokens or _MASK not in parameters or not reads_position(without_mask):
        return without_mask
    with_mask, with_number = DecoderInputs((*names, _MASK)), DecoderInputs(names, number=True)
    if not reads_position(with_mask):
        return with_mask
    return with_number if reads_position(with_number) is False else without_mask


def positions(model: Any) -> tuple[str, ...]:
    """The name of the input of a decoder that has the positions of its tokens; empty without one."""
    return tuple(name for name in (_POSITIONS,) if name in inspect.signature(type(model).forward).parameters)


def of_pair(model: Any, config: Any, length: int, call: Call) -> DecoderInputs:
    """Finds what the decoder of an encoder needs. Calls it with fake tensors only.

    Args:
        model: The encoder and the decoder.
        config: The configuration of the decoder.
        length: The number of tokens that the cache holds.
        call: Calls the model.

    Raises:
        InputError: The decoder makes no mask for a token, and has a branch for a cache without tokens.
    """
    if family(model.config.model_type).reads_mask:
        return DecoderInputs((), number=True, only_written=True)
    with_tensor = _tried(model, config, length, False, call)
    if with_tensor.reads_position is None or (with_tensor.makes_mask and not with_tensor.reads_position):
        return DecoderInputs(())
    with_number = _tried(model, config, length, True, call)
    if not with_number.makes_mask and with_number.reads_position:
        message = f"`{type(model).__name__}` makes no mask for a token, and has a branch of its own for the first token"
        raise InputError.at(_TASK, message, "write a factory for this model")
    return DecoderInputs((), number=with_number.reads_position is False, only_written=not with_number.makes_mask)


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


def _tried(model: Any, config: Any, length: int, as_integer: bool, call: Call) -> _Trial:
    """Calls a copy of a decoder with fake tensors, as in an export.

    Args:
        model: The decoder.
        config: The configuration of the decoder.
        length: The number of tokens that the cache holds.
        as_integer: Whether the cache says the number of its tokens as an integer, and not as a tensor.
        call: Calls the decoder.
    """
    from torch._subclasses.fake_tensor import DataDependentOutputException, FakeCopyMode, FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv

    from etplugins.transformers import static_cache

    layers = static_cache.layers_of(config, length)
    if any(has_states(layer) for layer in layers):
        return _Trial(None)
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv() if as_integer else None)
    position = mode.from_tensor(torch.tensor([0]))  # a tensor without a value
    asked: list[int] = []
    try:
        with FakeCopyMode(mode):
            copied = copy.deepcopy(model)
        copied.set_attn_implementation("eager")
        with torch.no_grad(), replaced(torch.compiler, "is_compiling", lambda: True), mode:  # as in an export
            before = number(position[0], length) if as_integer else position[0]
            cache = _cache(len(layers), length, before, asked)
            call(copied, torch.zeros((1, 1), dtype=torch.int64), cache, position)
    except (DataDependentOutputException, GuardOnDataDependentSymNode):
        return _Trial(True, bool(asked))
    except Exception:  # noqa: BLE001 - the first real call shows the error
        return _Trial(None)
    return _Trial(False, bool(asked))


def _cache(count: int, length: int, tokens_before: Any, asked: list[int]) -> Any:
    """A static cache of transformers with `count` layers that says that it has `tokens_before` tokens. `asked` gets the
    number of tokens of each call for which the decoder makes a mask."""
    from transformers.cache_utils import Cache, StaticLayer

    class CountedLayer(StaticLayer):  # type: ignore[misc]  # transformers has no types
        def get_seq_length(self) -> Any:
            return tokens_before

        def get_mask_sizes(self, query_length: int) -> Any:
            asked.append(query_length)
            return super().get_mask_sizes(query_length)

    return Cache(layers=[CountedLayer(length) for _ in range(count)])
