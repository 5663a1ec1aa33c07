"""What the parts of a step work with."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from etbuild.inputs.declared import Inputs
    from etbuild.inputs.user_code import SourceFinder

Stage = Callable[[str], AbstractContextManager[Any]]
"""Called with the name of a stage when it starts; the context ends with it."""


def silent(name: str) -> AbstractContextManager[None]:
    """A stage that no one is told of."""
    del name
    return nullcontext()


@dataclass(frozen=True)
class StepContext:
    """What a step works with, whatever it exports or lowers.

    Attributes:
        inputs: The declared inputs, which it may read.
        finder: The declared sources, which it may import.
        stage: Is told of each stage, for progress.
    """

    inputs: Inputs
    finder: SourceFinder
    stage: Stage = silent
