"""What plug-ins make of methods besides what their module computes: LoRA adapters."""

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

    from etbuild.emit.emit_methods import Emitted
    from etbuild.model.tensor_facts import TensorFacts

Programs = Mapping[str, "ExportedProgram"]


class Adapters(Protocol):
    """Adapters of a module, which some methods compute with.

    Methods are exported, lowered and emitted with stand-ins for the weights of adapters: `filled` replaces them. In all
    arguments `files`, each adapter has the declared file with its weights.
    """

    def attach(self, module: torch.nn.Module, export_plan: ExportPlan, inputs: Given) -> None:
        """Gives the layers of a module the adapters of a plan. No method computes with them outside of `applied`.

        Raises:
            InputError: A configuration cannot be read or does not fit the module.
        """

    def applied(
        self, module: torch.nn.Module, method: str, name: str | None
    ) -> AbstractContextManager[Callable[[ExportedProgram], None]]:
        """Within this context, a module computes with an adapter, or with none. Yields what checks the exported method,
        and removes from it what it does not read. The check raises a BuildError."""

    def check_weights(self, files: Mapping[str, str], facts: Iterable[TensorFacts], inputs: Given) -> None:
        """Checks that files hold what a module needs. Raises InputError."""

    def read_weights(self, files: Mapping[str, str], names: Collection[str], inputs: Given) -> dict[str, torch.Tensor]:
        """The weights among the names of a module's tensors. Raises InputError."""

    def check_emitted(self, programs: Programs, names: Collection[str]) -> Callable[[Emitted], None]:
        """What checks that emitted methods still have the stand-ins of these weights as they are, from the exported
        methods. The check raises a BuildError."""

    def filled(self, parts: Sequence[Emitted], weights: Mapping[str, torch.Tensor]) -> Sequence[Emitted]:
        """Emitted methods with weights, by name, in place of their stand-ins. Raises BuildError."""


def adapters() -> Adapters:
    """What reads and applies the adapters of a plan."""
    found: Adapters = plugins.load("method_change", "adapters")
    return found
