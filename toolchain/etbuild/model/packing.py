"""The interface of the plug-in that reads packed checkpoints. In these, several tensors hold one weight."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from etbuild import plugins
from etbuild.inputs.step_context import Spill
from etbuild.plan.step_plans import ExportPlan

if TYPE_CHECKING:
    import torch

    from etbuild.model.tensor_files import PackedWeight, TensorFile


class Packing(Protocol):
    """How a checkpoint is packed."""

    @property
    def method(self) -> str:
        """The library or format, for messages."""

    def facts(self) -> dict[str, object]:
        """The object as JSON, for `PackedCheckpoints.packing`."""

    def with_weights(self, files: Mapping[str, TensorFile]) -> dict[str, TensorFile]:
        """The opened files of a checkpoint by name, with the weights of packed layers in place of their parts.

        Raises:
            InputError: The form is not supported.
        """


class KeptWeights(Protocol):
    """Keeps packed weights in a module's layers, so that nothing quantizes them again.

    Attributes:
        kinds: The kind of layer of each weight that a method asks to keep, by the weight's name.
    """

    kinds: Mapping[str, str]

    def tensor(self, names: Collection[str], content: PackedWeight, dtype: torch.dtype, spill: Spill) -> torch.Tensor:
        """The content of a weight as floats. If no method needs floats, zeros that take no memory.

        Args:
            names: All names of the weight in the module.
            content: The packed weight.
            dtype: The dtype of the weight in the module.
            spill: As in `StepContext`.
        """


class PackedCheckpoints(Protocol):
    """The plug-in provides this as `packed`."""

    def packing_of(self, module: torch.nn.Module) -> Packing | None:
        """How the checkpoint of a model of transformers is packed; None if it is not."""

    def packing(self, facts: Mapping[str, Any]) -> Packing:
        """The packing with these facts."""

    def keep(self, module: torch.nn.Module, kinds: Mapping[str, str], unread: Collection[str]) -> KeptWeights:
        """Makes layers of a module keep packed weights.

        Args:
            module: The module.
            kinds: The kind of layer of each weight that a method asks to keep, by the weight's name.
            unread: The names of the weights that no method reads as floats.
        """

    def notes(self, module: torch.nn.Module, export_plan: ExportPlan) -> list[str]:
        """Notes for users: what happens to the packed weights of a module."""


def packed_checkpoints() -> PackedCheckpoints:
    """The plug-in that reads packed checkpoints."""
    found: PackedCheckpoints = plugins.load("tensor_file", "packed")
    return found
