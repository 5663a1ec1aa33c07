"""The states of convolutions and recurrences in the buffers of a decoder of transformers.

Layers such as those of Mamba, LFM2 and Qwen3.5 keep a state of a fixed size instead of keys and values. transformers
has two functions for each recurrence: one for a whole sequence, whose loop depends on the number of tokens, and one for
a single token. Here, a call repeats the function for a single token in a `scan`, which ExecuTorch runs as a loop.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, LinearAttentionCacheLayerMixin, LinearAttentionLayer

from etbuild.errors import BuildError, DocumentPath
from etbuild.patching import replaced
from etplugins.transformers import position_tables
from etplugins.transformers.token_loop import for_each_token

_CACHE: DocumentPath = ("model", "huggingface", "cache")


def has_states(layer: Any) -> bool:
    """Whether a layer of a cache of transformers keeps states."""
    return isinstance(layer, LinearAttentionCacheLayerMixin)


def states_only() -> Any:
    """A layer of a cache that keeps no keys and values."""
    return LinearAttentionLayer()


def number(tokens: torch.Tensor, length: int) -> Any:
    """The number of tokens in a cache as an integer with known limits.

    Args:
        tokens: The number as a tensor, int64 [].
        length: The number of tokens that the cache holds.
    """
    count = tokens.item()
    torch._check(count >= 0)
    torch._check(count <= length)
    return count


class States(torch.nn.Module):  # type: ignore[misc]
    """The states of one layer. Each is a buffer that begins with zeros and that no weights file holds."""

    def read(self, name: str, position: torch.Tensor) -> torch.Tensor | None:
        """The state before the token at a position, int64 [1]; zeros at position 0. None before the first write."""
        if not hasattr(self, name):
            return None
        return torch.where(position == 0, torch.zeros((), dtype=self.get_buffer(name).dtype), self.get_buffer(name))

    def write(self, name: str, value: torch.Tensor) -> None:
        """Keeps a state. The first write makes the buffer."""
        if not hasattr(self, name):
            self.register_buffer(name, torch.zeros_like(value), persistent=False)
        self.get_buffer(name).copy_(value)

    def with_zeros(self) -> States:
        """States of the same shapes and dtypes, with zeros."""
        states = States()
        for name, buffer in self.named_buffers():
            states.register_buffer(name, torch.zeros(buffer.shape, dtype=buffer.dtype), persistent=False)
        return states


class StateCache(Cache):  # type: ignore[misc]  # transformers has no types
    """A cache whose layers keep states in modules, and maybe keys and values.

    A mixer asks for its states, and then has one branch for a single token and one for several. Here it always gets
    None, and so takes the branch for several tokens. That is right for any number of tokens: `update_conv_state` puts
    the state before the new tokens, and `recurring` gives the state to the recurrence.

    Attributes:
        states: The states of each layer.
        updated: Whether this call has written a state.
        number_up_to: The largest number of tokens in the cache, if the model needs their number before a call as an
            integer; otherwise None.
    """

    def __init__(self, layers: list[Any]) -> None:
        super().__init__(layers=layers)
        self.states: Any = [States() for _ in layers]
        self.updated = False
        self.number_up_to: int | None = None
        self._position: Any = None
        self._awaited_state: tuple[Any, str] | None = None

    @contextmanager
    def at(self, position: torch.Tensor, model: Any) -> Iterator[None]:
        """Prepares the cache for one call of a model within this context.

        Args:
            position: The position of the first token of the call, int64 [1].
            model: The model. It has the states of its layers, if they keep any.
        """
        self._position, self.updated, self._awaited_state = position, False, None
        self.states = getattr(model, "states", self.states)
        position_tables.begin(model, position)
        try:
            with recurring(model, self):
                yield
            self._check_state_taken()
        finally:
            self._position = None  # otherwise a copy of the model would contain traced tensors
            position_tables.begin(model, None)

    def get_seq_length(self, layer_idx: int = 0) -> Any:
        """The number of tokens before this call."""
        has_keys = any(isinstance(layer, CacheLayerMixin) for layer in self.layers)
        count = super().get_seq_length(layer_idx) if has_keys else self._position[0]
        if self.number_up_to is None or not isinstance(count, torch.Tensor):
            return count
        return number(count, self.number_up_to)

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> Any:
        """The number of positions in a mask, and the first position."""
        if any(isinstance(layer, CacheLayerMixin) for layer in self.layers):
            return super().get_mask_sizes(query_length, layer_idx)
        return query_length, 0

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> None:
        """None, because `update_conv_state` returns the state together with the new tokens."""

    def update_conv_state(
        self, conv_states: torch.Tensor, layer_idx: int, state_idx: int = 0, conv_kernel_size: int | None = None
    ) -> torch.Tensor:
        """Keeps the last inputs of a convolution, [1, channels, kernel].

        Returns the inputs from before this call, and the new ones, [1, channels, kernel + seq].
        """
        if conv_kernel_size is None or not conv_states.is_floating_point():
            raise unsupported("it does not say how many inputs a convolution reads")
        states, name = self.states[layer_idx], f"conv_{state_idx}"
        before = states.read(name, self._position)
        if before is None:
            before = conv_states.new_zeros((*conv_states.shape[:-1], conv_kernel_size))
        inputs = torch.cat([before, conv_states], dim=-1)
        states.write(name, inputs[..., -conv_kernel_size:])
        self.updated = True
        return inputs

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> None:
        """None, because `recurring` gives the state to the recurrence that the mixer calls next."""
        self._check_state_taken()
        self._awaited_state = (self.states[layer_idx], f"recurrent_{state_idx}")

    def _check_state_taken(self) -> None:
        """Fails if no recurrence took the state that a mixer asked for: each call would begin with zeros."""
        if self._awaited_state is not None:
            raise unsupported("its recurrence is not one that is known here")

    def take_state(self) -> torch.Tensor | None:
        """The state that the mixer asked for, for its recurrence; None before the first write."""
        if self._awaited_state is None:
            raise unsupported("it computes a recurrence without its cache")
        (states, name), self._awaited_state = self._awaited_state, None
        state: torch.Tensor | None = states.read(name, self._position)
        return state

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **unused: Any
    ) -> torch.Tensor:
        """Keeps the state of a recurrence, and returns it."""
        self._check_state_taken()
        self.states[layer_idx].write(f"recurrent_{state_idx}", recurrent_states)
        self.updated = True
        return recurrent_states


def unsupported(reason: str) -> BuildError:
    """The error for a model whose states this cache cannot keep.

    Args:
        reason: The cause, as a sentence.
    """
    hint = "leave out `cache` and `task`, or write a factory for this model"
    return BuildError.at(_CACHE, f"the states of this model cannot be kept: {reason}", hint)


@contextmanager
def recurring(model: Any, cache: StateCache) -> Iterator[None]:
    """Lets the recurrences of a model go on from the states of a cache within this context.

    Args:
        model: The model. Its mixers call functions of the module of transformers that defines them.
        cache: The cache of this call.
    """
    modules = {sys.modules[type(part).__module__] for part in model.modules() if hasattr(part, "layer_idx")}
    with ExitStack() as stack:
        for module in modules:
            for name, new in [*_recurrences(module, cache)]:
                stack.enter_context(replaced(module, name, new))
        yield


def _recurrences(module: ModuleType, cache: StateCache) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Replacements for the functions of a module that compute a recurrence over a sequence, by name.

    A replacement begins with a state of the cache. The functions have the parameters of the kernels in the packages fla
    (delta rules) and mamba_ssm, by which they are recognized.
    """
    functions = {
        name: (value, set(inspect.signature(value).parameters))
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__
    }
    updates = [value for value, names in functions.values() if {"state", "dt", "dt_bias"} <= names]
    for name, (sequence_function, names) in functions.items():
        if {"chunk_size", "initial_state", "g"} <= names:
            single_token_functions = [
                value for value, other_names in functions.values() if other_names == names - {"chunk_size"}
            ]
            if len(single_token_functions) != 1:
                raise unsupported(f"there is no function for one token next to `{name}`")
            yield name, _delta_rule(sequence_function, single_token_functions[0], cache)
        elif {"chunk_size", "initial_states", "dt_limit"} <= names and updates:
            yield name, _mamba2(sequence_function, updates[0], cache)
        elif {"hidden_states", "dt", "return_last_state"} <= names and updates:
            yield name, _mamba(sequence_function, updates[0], cache)


def _delta_rule(
    sequence_function: Callable[..., Any], token_function: Callable[..., Any], cache: StateCache
) -> Callable[..., Any]:
    """A delta rule over [1, seq, heads, ...]. The function for a single token takes the same arguments."""

    def compute(*args: Any, **kwargs: Any) -> Any:
        arguments = inspect.signature(sequence_function).bind(*args, **kwargs).arguments
        arguments |= arguments.pop("kwargs", {})
        state = cache.take_state()
        if state is None:
            return sequence_function(**arguments)
        tokens = {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}
        options = {name: value for name, value in arguments.items() if name not in tokens and name != "initial_state"}

        def step(before: torch.Tensor, inputs: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
            token_inputs = {name: value.unsqueeze(1) for name, value in zip(tokens, inputs, strict=True)}
            output, after = token_function(**token_inputs, **options, initial_state=before)
            return after, output[:, 0]

        after, outputs = for_each_token(step, state, [value.transpose(0, 1) for value in tokens.values()])
        return outputs.transpose(0, 1), after

    return compute


def _mamba(
    sequence_function: Callable[..., Any], token_function: Callable[..., Any], cache: StateCache
) -> Callable[..., Any]:
    """The recurrence of Mamba over [1, channels, seq]."""

    def compute(hidden_states: Any, dt: Any, A: Any, B: Any, C: Any, **options: Any) -> Any:  # noqa: N803 - their names
        state = cache.take_state()
        if state is None:
            return sequence_function(hidden_states, dt, A, B, C, **options)
        gate = options.get("z")
        tokens = [hidden_states, dt, B, C, *([] if gate is None else [gate])]

        def step(before: torch.Tensor, inputs: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
            hidden, length, b, c, *z = inputs
            after = before.clone()
            bias_options = {"dt_bias": options.get("delta_bias"), "dt_softplus": options.get("delta_softplus", False)}
            output = token_function(
                after, hidden, length, A, b, c, options.get("D"), z=z[0] if z else None, **bias_options
            )
            return after, output

        after, outputs = for_each_token(step, state, [value.permute(2, 0, 1) for value in tokens])
        return outputs.permute(1, 2, 0), after

    return compute


def _mamba2(
    sequence_function: Callable[..., Any], token_function: Callable[..., Any], cache: StateCache
) -> Callable[..., Any]:
    """The recurrence of Mamba 2 over [1, seq, heads, size]. Each head has one `A`, `D` and step length."""

    def compute(hidden_states: Any, dt: Any, A: Any, B: Any, C: Any, **options: Any) -> Any:  # noqa: N803 - their names
        state = cache.take_state()
        if state is None:
            return sequence_function(hidden_states, dt, A, B, C, **options)
        sizes, skip = state.shape[1:], options.get("D")
        if options.get("z") is not None:
            raise unsupported("its recurrence has a gate of its own")

        def step(before: torch.Tensor, inputs: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
            hidden, length, b, c = inputs
            after, rates = before.clone(), A[:, None, None].expand(sizes)
            skip_of_heads = None if skip is None else skip[:, None].expand(sizes[:2])
            output = token_function(
                after, hidden, length[:, :, None].expand(-1, -1, sizes[1]), rates, b, c, skip_of_heads
            )
            return after, output

        lengths = _step_lengths(dt, options)
        after, outputs = for_each_token(
            step, state, [value.transpose(0, 1) for value in (hidden_states, lengths, B, C)]
        )
        return outputs.transpose(0, 1), after

    return compute


def _step_lengths(dt: torch.Tensor, options: Mapping[str, Any]) -> torch.Tensor:
    """The step lengths of Mamba 2, [1, seq, heads], within limits that the function for a single token ignores."""
    bias, limits = options.get("dt_bias"), options.get("dt_limit", (0.0, float("inf")))
    dt = dt if bias is None else dt + bias.to(dt.dtype)
    dt = torch.nn.functional.softplus(dt) if options.get("dt_softplus", False) else dt
    return torch.clamp(dt, min=limits[0], max=limits[1])
