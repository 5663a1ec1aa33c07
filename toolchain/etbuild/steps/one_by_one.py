"""What lowers methods one by one, and without their weights: a plug-in. Without it, they are lowered together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from etbuild import plugins
from etbuild.files.writing import Artifact

if TYPE_CHECKING:
    from etbuild.plan.step_plans import MethodPlan
    from etbuild.steps.lower import Lowering
    from etbuild.steps.saved_export import LoweringJob


class KeptMethods:
    """Keeps methods that were lowered by themselves. This one has none, and keeps none."""

    def fetch(self, name: str, directory: Path, *, weights: bool) -> bool:
        """Fills the empty directory of a method. Returns False if it does not have the method.

        Args:
            name: The method's name.
            directory: The directory.
            weights: Whether the method was lowered with the content of weights.
        """
        del name, directory, weights
        return False

    def keep(self, directories: Mapping[str, Path], *, weights: bool) -> AbstractContextManager[None]:
        """Keeps methods that are lowered into these directories, by name, within this context."""
        del directories, weights
        return nullcontext()


class OneByOne(Protocol):
    """Lowers methods by themselves, which a plug-in provides as the lowering `one_by_one`.

    They are lowered without the content of weights, as far as that is possible, and bound to it then. The errors of all
    functions are those of `Lowering.run`.
    """

    def lower(self, lowering: Lowering, kept: KeptMethods) -> list[Artifact]:
        """Lowers the methods, except for those that are kept, and merges them into one program."""

    def merge(self, lowering: Lowering, lowered: Sequence[Path]) -> list[Artifact]:
        """Merges methods that `templates` has lowered in some directories.

        Raises:
            InputError: They are other methods, or were lowered in another way.
        """

    def templates(self, job: LoweringJob[MethodPlan], directory: Path, *, weights: bool) -> list[Path]:
        """Lowers each method by itself without the content of weights, if possible.

        Args:
            job: The methods.
            directory: An existing empty directory, for `merge`.
            weights: Whether to lower the others too, with the content of weights. If not, no weights file is needed.

        Returns:
            The files of weights if their content cannot change the result; otherwise none.
        """

    def directories(self, scratch: Path, names: Sequence[str]) -> list[Path]:
        """Where `lower` has put methods, in the directory `Lowering.scratch`, without those that it has not lowered."""

    def import_all(self, *, lowers: bool) -> None:
        """Imports what lowering needs, or only what makes a program of lowered methods."""


def one_by_one() -> OneByOne | None:
    """What lowers methods by themselves; None if there is no such plug-in."""
    return needed() if "one_by_one" in plugins.group("lowering") else None


def needed() -> OneByOne:
    """What lowers methods by themselves. Raises InputError if there is no such plug-in."""
    found: OneByOne = plugins.load("lowering", "one_by_one")
    return found
