"""Speculative decoding: the method `draft` proposes tokens, and one call of `verify` says which of them are right."""

from __future__ import annotations

from typing import Any

from etbuild.errors import counted
from etkit.running.generation.caches import Cache, HeldCache
from etplugins.runtime.program_files import ProgramFiles

_DRAFT, _VERIFY = "draft", "verify"
_FIRST, _MORE = 4, 2
"""How many tokens the first call drafts, and how many more a call does after one whose tokens were all right. After
another one it drafts one less: `assisted_decoding` of transformers does the same."""


class Drafts:
    """The drafts of one program, for the most likely tokens.

    Args:
        files: The program.
        cache: Its cache.

    Attributes:
        written: How many tokens `verify` has confirmed or chosen.
        calls: How often each method was called, by its name.
    """

    def __init__(self, files: ProgramFiles, cache: Cache) -> None:
        inputs: list[Any] = files.method(_VERIFY)["inputs"]
        self._cache, self._longest, self._count = cache, int(inputs[0]["shape"][1]), _FIRST
        self._is_fixed = isinstance(cache, HeldCache)
        self.written, self.calls = 0, {_VERIFY: 0, _DRAFT: 0}

    @staticmethod
    def are_in(files: ProgramFiles, cache: Cache) -> bool:
        """Whether a program has both methods, and what `draft` keeps is what `verify` reads."""
        methods: dict[str, Any] = files.facts["methods"]
        if not {_DRAFT, _VERIFY} <= methods.keys() or isinstance(cache, HeldCache):
            return {_DRAFT, _VERIFY} <= methods.keys()
        draft, verify = ([each.get("shape") for each in methods[name]["inputs"]] for name in (_DRAFT, _VERIFY))
        return files.shares_state and draft == [[1, 1], [1]] and verify[1:] == [[1]]

    def fitting(self, wanted: int, space: int) -> int:
        """How many tokens to draft now; 0 if a call of `verify` does not pay or does not fit.

        Args:
            wanted: How many tokens the text may still have.
            space: How many positions the cache has from that of the last token on.
        """
        if self._is_fixed and space < self._longest:
            return 0
        return max(0, min(self._count, self._longest - 1, wanted - 1, space - 1))

    def next(self, last: int, position: int, count: int) -> list[int]:
        """The next tokens of a text, as many as the drafts that are right, and one more.

        Args:
            last: The last token. The cache has all tokens before it.
            position: Its position.
            count: How many tokens to draft.
        """
        call = [last]
        for place in range(position, position + count):
            call.append(int(self._cache.call(_DRAFT, call[-1:], place).argmax()))
        filling = [0] * (self._longest - len(call)) if self._is_fixed else []  # the next call replaces it
        rows = self._cache.call(_VERIFY, [*call, *filling], position)
        choices: list[int] = rows[0, : len(call)].argmax(-1).tolist()
        right = next((place for place in range(count) if call[place + 1] != choices[place]), count)
        self._count = count + _MORE if right == count else max(1, count - 1)
        self.written += right + 1
        self.calls[_DRAFT] += count
        self.calls[_VERIFY] += 1
        return choices[: right + 1]

    @property
    def notes(self) -> list[str]:
        """How many calls the text took, if any of it is from drafts."""
        called = " and ".join(f"{counted(count, 'call')} of `{name}`" for name, count in self.calls.items())
        return [f"{counted(self.written, 'token')} took {called}"] if self.written else []
