"""What the parts of a step share: inputs, sources and progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from etbuild.inputs.given import Given

Stage = Callable[[str], AbstractContextManager[Any]]
"""A function that is called with the name of a stage when it starts. The returned context ends with the stage."""

Watch = Callable[[Mapping[str, str], Iterable[Path], set[str]], AbstractContextManager[None]]
"""`guard.reads.watched_reads` for a step, which refuses reads of the sources that no key covers. The caller of a step
passes it on: it can make the step fail, but gives it no value."""


def silent(name: str) -> AbstractContextManager[None]:
    """A `Stage` that reports nothing."""
    del name
    return nullcontext()


Spill = Callable[["torch.Tensor", Callable[[], "torch.Tensor"]], "torch.Tensor"]
"""Takes a tensor and a function that reads it again. Returns it, or one whose content is elsewhere until it is read."""


@dataclass(frozen=True)
class StepContext:
    """What every step needs, whether it exports or lowers.

    Attributes:
        inputs: The declared inputs, which the step may read.
        stage: Is called for each stage, to show progress.
        spill: Keeps large tensors elsewhere; None: they stay in memory.
    """

    inputs: Given
    stage: Stage = silent
    spill: Spill | None = None
