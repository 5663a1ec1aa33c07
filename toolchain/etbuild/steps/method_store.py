"""Where the methods are that lowering lowers one by one."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path


def with_weights(directory: Path, name: str) -> Path:
    """The directory of a method that is lowered with the content of weights, in the directory of a store. A method that
    is lowered without is in the directory with its own name."""
    return directory / f"{name}.weights"


class MethodStore:
    """The directories of methods that are lowered one by one. This store has no methods and keeps none."""

    def __init__(self, directory: Path) -> None:
        """Args:
        directory: A directory for those of the methods. It exists.
        """
        self.directory = directory

    def fetch(self, name: str, directory: Path, *, weights: bool) -> bool:
        """Fills the empty directory of a method. Returns False if the store does not have the method.

        Args:
            name: The method's name.
            directory: The directory.
            weights: Whether the method was lowered with the content of weights.
        """
        del name, directory, weights
        return False

    def keep(self, directories: Mapping[str, Path], *, weights: bool) -> AbstractContextManager[None]:
        """Keeps the methods that are lowered inside into these directories, by name."""
        del directories, weights
        return nullcontext()
