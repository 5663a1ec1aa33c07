"""The cache of a language model: in the memory of its program, or held here between two calls."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any, Protocol

import torch

from etbuild.errors import InputError
from etplugins.runtime.program_files import ProgramFiles
from etplugins.runtime.session import Session
from etplugins.transformers.parts import HIDDEN

_METHOD, _ONE_TOKEN = "forward", "decode"
_NAMES, _OF_TOKENS = "get_input_names", ("key_", "value_")


class Cache(Protocol):
    """Calls a program with its cache."""

    def longest(self, tokens: int) -> int:
        """How many of the next tokens a call takes, if `tokens` are left."""

    def scores(self, call: Sequence[int], first: int) -> torch.Tensor:
        """Calls the program with tokens, the first of which has the position `first`. Returns the scores of the last
        token or of all, [..., vocabulary]. The call at position 0 begins a new text."""

    def call(self, method: str, call: Sequence[int], first: int) -> torch.Tensor:
        """Calls a method of the program as `scores` does, and returns its scores."""


def cache_of(files: ProgramFiles, session: Session) -> Cache:
    """The cache of a program.

    Args:
        files: The program.
        session: Its session.

    Raises:
        InputError: The program takes no tokens with their positions, or only several tokens in a call.
    """
    takes_others = len(files.method(_METHOD)["inputs"]) > len(("tokens", "position"))
    is_held = takes_others and _NAMES in files.facts["methods"]
    return HeldCache(files, session) if is_held else _OwnCache(files, session)


class _OwnCache:
    """The program keeps its cache."""

    def __init__(self, files: ProgramFiles, session: Session) -> None:
        shapes: list[Any] = [each.get("shape") for each in files.method(_METHOD)["inputs"]]
        if len(shapes) != 2 or shapes[1] != [1] or len(shapes[0]) != 2:
            hint = "`task: text-generation` with `cache` writes such a method"
            raise InputError.of(f"`{_METHOD}` does not take tokens and the position of the first one", hint)
        self._longest, self._session = int(shapes[0][1]), session

    def longest(self, tokens: int) -> int:
        return min(tokens, self._longest)

    def scores(self, call: Sequence[int], first: int) -> torch.Tensor:
        return self.call(_METHOD, call, first)

    def call(self, method: str, call: Sequence[int], first: int) -> torch.Tensor:
        found: torch.Tensor = self._session.call(method, [torch.tensor([call]), torch.tensor([first])])[0]
        return found


class HeldCache:
    """The cache of the kind `external`: keys, values and states are inputs and outputs of methods of fixed lengths.

    Attributes:
        lengths: The method for each number of tokens.
        held: The keys and values of the text so far, and its states, by the name of the input.
    """

    def __init__(self, files: ProgramFiles, session: Session) -> None:
        methods = files.facts["methods"]
        facts: dict[str, Any] = {each: methods[each]["inputs"] for each in (_METHOD, _ONE_TOKEN) if each in methods}
        self.lengths = {int(inputs[0]["shape"][1]): name for name, inputs in facts.items()}
        if 1 not in self.lengths:
            raise InputError.of("no method of the program takes one token", f"add `{_ONE_TOKEN}: {{}}` to `methods`")
        self._session, one, called = session, self.lengths[1], [name for name in methods if methods[name]["inputs"]]
        self._inputs = {name: self._names(name, "input", methods)[2:] for name in called}
        self._outputs = {name: self._names(name, "output", methods)[1:] for name in called}
        kinds = dict(zip(self._inputs[one], facts[one][2:], strict=True))
        self.held = {name: torch.zeros(kinds[name]["shape"], dtype=_dtype(kinds[name])) for name in self._outputs[one]}
        self._masks = {name: _dtype(kinds[name]) for name in kinds if name not in self.held}
        self._slots = int(session.call("get_max_context_len", [])[0])
        limits = ("get_sliding_window", "get_attention_chunk_size")
        self._limits = [int(session.call(each, [])[0]) if each in methods else None for each in limits]

    def _names(self, method: str, side: str, known: Collection[str]) -> list[str]:
        """The names of the inputs or outputs of a method, of its own or those of all methods."""
        own = f"get_{method}_{side}_names"
        names: list[str] = json.loads(self._session.call(own if own in known else f"get_{side}_names", [])[0])
        return names

    def longest(self, tokens: int) -> int:
        """The longest call that needs no padding: states would hold what fills it up."""
        return max(length for length in self.lengths if length <= tokens)

    def scores(self, call: Sequence[int], first: int) -> torch.Tensor:
        """Calls the method that takes as many tokens; see `Cache`."""
        if first == 0:
            self.held = {name: torch.zeros_like(each) for name, each in self.held.items()}
        return self.call(self.lengths[len(call)], call, first)

    def call(self, method: str, call: Sequence[int], first: int) -> torch.Tensor:
        """Calls a method with as many tokens as it takes, and keeps their keys, values and states."""
        positions = torch.arange(first, first + len(call))
        given = {**{name: self._mask(name, positions) for name in self._masks}, **self.held}
        inputs = [torch.tensor([call]), positions[None], *(given[name] for name in self._inputs[method])]
        found, *new = self._session.call(method, inputs)
        for name, part in zip(self._outputs[method], new, strict=True):
            if not name.startswith(_OF_TOKENS):
                self.held[name] = part
                continue
            end = min(first + len(call), self._slots)
            self.held[name][:, :, first:end] = part[:, :, : end - first]
        scores: torch.Tensor = found
        return scores

    def _mask(self, name: str, positions: torch.Tensor) -> torch.Tensor:
        limits = self._limits if name.startswith("sliding") else ()
        return mask(positions, self._slots, self._masks[name], *limits)


def mask(
    positions: torch.Tensor, slots: int, dtype: torch.dtype, window: int | None = None, chunk: int | None = None
) -> torch.Tensor:
    """A mask, [1, 1, seq, slots + seq]: 0 for a token that is seen, and `HIDDEN` for others.

    Args:
        positions: The positions of the tokens of the call, int64 [seq]. Earlier tokens are in the slots of theirs.
        slots: The number of tokens that the cache holds.
        dtype: The dtype of the mask.
        window: The number of tokens that a token sees, with itself; None for no window.
        chunk: A token sees those whose position divided by `chunk` gives the same number; None for no chunks.
    """
    held = torch.arange(slots)
    seen = torch.cat([torch.where(held < positions[0], held, positions[-1] + 1), positions])[None]
    asking = positions[:, None]
    visible = seen <= asking
    if window is not None:
        visible &= seen > asking - window
    if chunk is not None:
        visible &= seen // chunk == asking // chunk
    return torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, HIDDEN)[None, None]


def _dtype(fact: Any) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, fact["dtype"])
    return dtype
