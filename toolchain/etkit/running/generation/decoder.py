"""A language model in ExecuTorch's runtime, called as ExecuTorch's runner does, or with a cache that is held here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from etbuild.errors import InputError
from etkit.running.generation.caches import cache_of
from etkit.running.generation.drafts import Drafts
from etplugins.runtime.program_files import ProgramFiles
from etplugins.runtime.session import Session

_ENDS = "get_eos_ids"


class Decoder:
    """A program for `executorch-llm/v1`, or one with a cache of the kind `external`, and the text that its cache holds.

    Attributes:
        ends: The tokens that end a text.
        context: The number of tokens that the cache has space for.
        held: The tokens in the cache.
        computed: How many tokens were computed, without drafts.
        drafts: The drafts of a program with the methods `draft` and `verify`; otherwise None.
    """

    def __init__(self, files: ProgramFiles, scratch: Path) -> None:
        """Loads a program.

        Args:
            files: Its files.
            scratch: A directory that outlives the decoder.

        Raises:
            InputError: The program takes no tokens with their positions, or only several tokens in a call.
            BuildError: The runtime refuses the program.
        """
        self._session = Session(files, scratch)
        ends = self._session.call(_ENDS, []) if _ENDS in files.facts["methods"] else ()  # an application may know them
        self.ends = {int(each) for each in ends}
        self.context = int(self._session.call("get_max_context_len", [])[0])
        self._cache = cache_of(files, self._session)
        self.drafts = Drafts(files, self._cache) if Drafts.are_in(files, self._cache) else None
        self.held: list[int] = []
        self.computed = 0

    def scores(self, tokens: Sequence[int]) -> torch.Tensor:
        """The scores of the token after a text. If the text continues the text in the cache, only new tokens are
        computed. Otherwise the cache starts again: not every cache can go back.

        Args:
            tokens: The text. There is at least one token, and not more than `context`.

        Raises:
            BuildError: The runtime cannot run the program.
        """
        text, known = [*tokens], len(self.held)
        start = known if known < len(text) and text[:known] == self.held else 0
        self.held = text[:start]
        found = torch.empty(0)
        while len(self.held) < len(text):
            call = text[len(self.held) :][: self._cache.longest(len(text) - len(self.held))]
            found = self._cache.scores(call, len(self.held))
            self.held += call
            self.computed += len(call)
        return found.reshape(-1, found.shape[-1])[-1]

    def written(self, text: Sequence[int], most: int, temperature: float = 0) -> Iterator[int]:
        """Yields the tokens that the program writes after a text, as ExecuTorch's runner draws them. The caller stops
        at a token that ends the text.

        Args:
            text: The prompt.
            most: The largest number of tokens.
            temperature: How freely tokens are drawn; 0 for the most likely one.

        Raises:
            InputError: The prompt has no token, or more than `context`.
            BuildError: The runtime cannot run the program.
        """
        if not text:
            raise InputError.of("the prompt is empty: it has no token that the program could continue", "write a text")
        if len(text) > self.context:
            message = f"the prompt has {len(text)} tokens, and the cache of the program {self.context}"
            raise InputError.of(message, "write a larger `max_length` of the cache, or a shorter prompt")
        tokens, end = [*text], min(len(text) + most, self.context + 1)
        while len(tokens) < end:
            new = [] if temperature else self._confirmed(tokens, end - len(tokens))
            for token in new or [chosen(self.scores(tokens), temperature)]:
                self.held = [*tokens]  # the cache may have more: the caller may stop here
                tokens.append(token)
                yield token

    def _confirmed(self, text: list[int], wanted: int) -> list[int]:
        """The most likely tokens after a text, from drafts; empty without them, or if several of its tokens are new."""
        last = len(text) - 1
        if self.drafts is None or self.held != text[:last]:
            return []
        count = self.drafts.fitting(wanted, self.context - last)
        if count == 0:
            return []
        found = self.drafts.next(text[last], last, count)
        self.computed += count + 1
        return found


def chosen(scores: torch.Tensor, temperature: float) -> int:
    """The next token.

    Args:
        scores: The score of each token.
        temperature: How freely it is drawn; 0 for the most likely one.
    """
    if temperature == 0:
        return int(scores.argmax())
    below = scores.float() - scores.float().max()  # for a small temperature, scores above 0 would be infinite
    return int(torch.multinomial(torch.softmax(below / temperature, -1), 1))
