"""Changes of methods by plug-ins: LoRA adapters, and another dtype of what they compute."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from etbuild import plugins
from etbuild.inputs.given import Given
from etbuild.plan.step_plans import ExportPlan

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

    from etbuild.emit.emitted import Emitted
    from etbuild.model.tensor_facts import TensorFacts

Programs = Mapping[str, "ExportedProgram"]


class Adapters(Protocol):
    """Adapters of a module for some of its methods.

    Methods are exported, lowered and emitted with stand-ins for the weights of adapters: `filled` replaces them. Each
    argument `files` has the declared file with the weights of each adapter.
    """

    def attach(self, module: torch.nn.Module, export_plan: ExportPlan, inputs: Given) -> None:
        """Gives the layers of a module the adapters of a plan. No method computes with them outside of `applied`.

        Raises:
            InputError: A configuration cannot be read or does not fit the module.
        """

    def applied(
        self, module: torch.nn.Module, method: str, name: str | None
    ) -> AbstractContextManager[Callable[[ExportedProgram], None]]:
        """Within this context, a module computes with an adapter, or with none. Yields a function that checks the
        exported method, and removes unread parts from it. The check raises a BuildError."""

    def check_weights(self, files: Mapping[str, str], facts: Iterable[TensorFacts], inputs: Given) -> None:
        """Checks that files hold the weights that a module needs. Raises InputError."""

    def read_weights(self, files: Mapping[str, str], names: Collection[str], inputs: Given) -> dict[str, torch.Tensor]:
        """The weights of adapters among the names of a module's tensors. Raises InputError."""

    def check_emitted(self, programs: Programs, names: Collection[str]) -> Callable[[Emitted], None]:
        """From the exported methods, a check that emitted methods still have unchanged stand-ins of these weights. The
        check raises a BuildError."""

    def filled(self, parts: Sequence[Emitted], weights: Mapping[str, torch.Tensor]) -> Sequence[Emitted]:
        """Emitted methods with these weights (by name) in place of their stand-ins. Raises BuildError."""


class Precision(Protocol):
    """Another dtype of what methods compute."""

    def convert(self, module: torch.nn.Module, programs: Programs, export_plan: ExportPlan) -> None:
        """Converts exported methods and the weights of their module, in place. Inputs and outputs keep their dtype.

        Raises:
            InputError: The plan names parts that the module does not have.
            BuildError: A weight is too large for the dtype.
        """


def precision() -> Precision:
    """The object that changes the dtype of what methods compute."""
    found: Precision = plugins.load("method_change", "precision")
    return found


def adapters() -> Adapters:
    """The object that reads and applies the adapters of a plan."""
    found: Adapters = plugins.load("method_change", "adapters")
    return found
