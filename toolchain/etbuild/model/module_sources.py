"""The plug-ins that make modules if there is no factory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from etbuild import plugins
from etbuild.inputs.given import Given
from etbuild.inputs.step_context import StepContext
from etbuild.plan.parts import ModuleSource
from etbuild.plan.step_plans import ExportPlan

if TYPE_CHECKING:
    import torch


class ModuleMaker(Protocol):
    """Makes the modules of one kind of source. A plug-in provides it as a `module_source`."""

    def create(self, source: ModuleSource, context: StepContext, loaded: bool) -> torch.nn.Module:
        """Makes the module. `model.module.create` describes the arguments and errors."""

    def constants(self, export_plan: ExportPlan, module: torch.nn.Module, inputs: Given) -> dict[str, object]:
        """The constant methods that follow from a module, by name. The export plan has its source and the runner.

        Raises InputError if the runner needs a constant that is unknown.
        """


def maker_of(source: ModuleSource) -> ModuleMaker | None:
    """The plug-in that makes the module of a source; None if a factory or nothing does."""
    name = source.plugin
    if name is None:
        return None
    maker: ModuleMaker = plugins.load("module_source", name)
    return maker
