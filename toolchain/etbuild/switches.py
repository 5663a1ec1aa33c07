"""Makes PyTorch and ExecuTorch faster for a while, without a change of results.

In the group `switch`, a plug-in provides a function for each occasion, which returns a context manager. Without a
plug-in, nothing is faster.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal, Protocol

from etbuild import plugins

GROUP = "switch"
Occasion = Literal["exporting", "importing", "importing_without_lowering", "loading", "quantizing", "saving"]


class Notes(Protocol):
    """The notes of lowering besides its results."""

    def take(self) -> Any:
        """The notes of a fork, which can be pickled."""

    def add(self, noted: Any) -> None:
        """Adds the notes of a fork."""


def on(occasion: Occasion) -> AbstractContextManager[None]:
    """Returns a context manager in which methods are exported, quantized, saved or loaded faster, or ExecuTorch is
    imported. Without lowering, parts of it that lower methods are imported when something uses them."""
    return _on(occasion)


def lowering(directory: Path | None = None, jobs: int = 1, notes: Notes | None = None) -> AbstractContextManager[None]:
    """Returns a context manager in which methods are loaded, lowered and emitted faster.

    Args:
        directory: The directory for backends' results from weights, which is made. The lowered methods need it. None:
            in memory.
        jobs: The maximum number of processes at the same time.
        notes: The notes of a process besides its results. None: it has none.
    """
    return _on("lowering", directory, jobs, notes)


def _on(occasion: str, *arguments: object) -> AbstractContextManager[None]:
    if occasion not in plugins.group(GROUP):
        return nullcontext()
    switched: AbstractContextManager[None] = plugins.load(GROUP, occasion)(*arguments)
    return switched
