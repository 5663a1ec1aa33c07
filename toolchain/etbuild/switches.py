"""What makes PyTorch and ExecuTorch faster for a while, and changes no result.

A plug-in provides a function for each occasion, in the group `switch`, which returns a context manager. Where none is
there, nothing gets faster.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal, Protocol

from etbuild import plugins

GROUP = "switch"


class Notes(Protocol):
    """What lowering notes beside its results."""

    def take(self) -> Any:
        """What a fork has noted, which can be pickled."""

    def add(self, noted: Any) -> None:
        """Adds what a fork has noted."""


def on(occasion: Literal["exporting", "importing", "quantizing", "saving"]) -> AbstractContextManager[None]:
    """Returns a context manager in which methods are exported, quantized or saved faster, or ExecuTorch is imported."""
    return _on(occasion)


def lowering(directory: Path | None = None, jobs: int = 1, notes: Notes | None = None) -> AbstractContextManager[None]:
    """Returns a context manager in which methods are loaded, lowered and emitted faster.

    Args:
        directory: Where to keep what backends make from weights, as long as the lowered methods are needed. It is made.
            None: in memory.
        jobs: The most processes at the same time.
        notes: What a process notes beside its results. None: nothing.
    """
    return _on("lowering", directory, jobs, notes)


def _on(occasion: str, *arguments: object) -> AbstractContextManager[None]:
    if occasion not in plugins.group(GROUP):
        return nullcontext()
    switched: AbstractContextManager[None] = plugins.load(GROUP, occasion)(*arguments)
    return switched
