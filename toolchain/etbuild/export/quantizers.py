"""The interfaces of plug-ins that quantize: those of the group `quantizer`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from etbuild import plugins
from etbuild.errors import DocumentPath
from etbuild.inputs.step_context import StepContext
from etbuild.model.tensor_facts import Recipe
from etbuild.plan.parts import Quantize
from etbuild.plan.step_plans import ExportPlan

if TYPE_CHECKING:
    import torch
    from executorch.export import QuantizationRecipe
    from torch.export import ExportedProgram

    from etbuild.export.kept_weights import KeptWeights
    from etbuild.export.read_archive import SavedExport
    from etbuild.model.checkpoint import CheckpointTensors


class CannotDefer(Exception):
    """The content of weights is needed to quantize them. Users see the message as the reason."""


class QuantizedModule(Protocol):
    """A module whose weights can be switched to quantized ones and back."""

    def __call__(self) -> AbstractContextManager[torch.nn.Module]:
        """Switches the module to quantized weights within this context."""

    def check(self, program: ExportedProgram) -> None:
        """Checks a method that was exported with quantized weights. Raises BuildError if it reads other weights."""


class QuantizedModules(Protocol):
    """The module with the quantized weights of each method, from the plug-in `torchao`."""

    def __init__(self, module: torch.nn.Module, export_plan: ExportPlan, free: bool, deferred: bool) -> None:
        """Args:
        module: The module with its weights.
        export_plan: How its methods are quantized.
        free: Whether the weights before quantization may be freed when no method needs them. The module cannot be
            used without quantization afterwards.
        deferred: Whether the content of the weights is still unknown, so that quantized weights are computed later.
        """

    def module_for(self, method: str) -> QuantizedModule | None:
        """The module with the quantized weights of a method; None if the method uses the original weights.

        Raises:
            CannotDefer: The weights must be computed later, but cannot be.
            InputError: The plan does not fit the module.
            BuildError: A weight cannot be quantized.
        """

    def recipe_of(self, tensor: torch.Tensor) -> Recipe | None:
        """How the content of a method's tensor is computed from a weight; None if it has its content."""

    @staticmethod
    def kept_weights(
        module: torch.nn.Module, export_plan: ExportPlan, packed: bool, floats: bool
    ) -> tuple[dict[str, str], set[str]]:
        """The weights in a packed checkpoint whose integers methods keep. A method says that it does.

        Args:
            module: The module.
            export_plan: How its methods are quantized.
            packed: Whether the checkpoint may be packed.
            floats: Whether the module will also be used without quantization.

        Returns:
            The kind of layer of each weight that a method keeps, by the weight's name; and the names of the weights
            that no method reads as floats.

        Raises:
            InputError: The checkpoint is not packed.
        """


class RecipeQuantizer(Protocol):
    """Quantizes the content of weights if the export did not know it. The plug-in `recipe` makes it."""

    def read(
        self,
        saved: SavedExport,
        checkpoint: CheckpointTensors,
        needed: Collection[str] | None,
        kept: KeptWeights | None,
    ) -> Callable[[str], torch.Tensor]:
        """Computes the tensors of methods that are not weights themselves. A weight is in memory only while tensors are
        computed from it. The computed tensors are in memory only if `kept` is None.

        Args:
            saved: The export.
            checkpoint: The weights files.
            needed: The names of the tensors; None for all.
            kept: The files and the cache that keep computed weights; None without them.

        Returns:
            A function that reads a tensor by its name, a computed one or one of the weights files. Each call reads it
            again, and raises InputError if the tensor is damaged.

        Raises:
            InputError: A weight is missing or damaged.
            BuildError: A weight cannot be quantized.
        """


class MethodQuantization(Protocol):
    """Quantizes the graph of a method. The method is then exported again. The plug-in `pt2e` makes it."""

    @property
    def trains(self) -> bool:
        """Whether the method is trained; otherwise it is calibrated."""

    @property
    def dynamic_batch(self) -> bool:
        """Whether batches may have another size in the first dimension than the example inputs."""

    @property
    def path(self) -> DocumentPath:
        """The document path of the quantization, for errors."""

    def check_batches(self, arguments: tuple[Any, ...], dims: list[tuple[Any, ...] | None]) -> None:
        """Checks that the method accepts the batches that it is calibrated on. Raises InputError.

        Args:
            arguments: The positional example inputs.
            dims: For each tensor and plain value in `arguments`, its dimensions in the form that `torch.export`
                accepts; None: all are fixed.
        """

    def quantize(
        self, program: ExportedProgram, written: set[str], submodules: Collection[str]
    ) -> torch.fx.GraphModule:
        """Quantizes the graph of a method, which becomes a module with its weights. Raises BuildError.

        Args:
            program: The exported method.
            written: The buffers that a trained method writes to when it runs, such as a cache. They keep their content.
            submodules: The names of the module's submodules.
        """

    def arguments(self, given: tuple[Any, ...], graph_module: torch.fx.GraphModule) -> tuple[Any, ...]:
        """The positional inputs of the quantized graph, made of the example inputs."""


def of_weights() -> type[QuantizedModules]:
    """The plug-in that quantizes the weights of a module before its methods are exported."""
    found: type[QuantizedModules] = plugins.load("quantizer", "torchao")
    return found


def of_recipes() -> RecipeQuantizer:
    """The plug-in that quantizes the content of weights after an export that did not know it."""
    found: RecipeQuantizer = plugins.load("quantizer", "recipe")
    return found


def of_method(
    quantize: Quantize | None,
    recipe: QuantizationRecipe | None,
    arguments: tuple[Any, ...],
    path: DocumentPath,
    context: StepContext,
) -> MethodQuantization:
    """Makes the quantization of a method, from the manifest or an export recipe. One of them has it.

    Args:
        quantize: How the manifest quantizes the method.
        recipe: The part of the export recipe about quantization.
        arguments: The positional example inputs.
        path: The document path of `quantize`.
        context: The declared inputs of the step.

    Raises:
        InputError: A declared input is missing or does not fit.
        BuildError: A quantizer cannot be made.
    """
    made: MethodQuantization = plugins.load("quantizer", "pt2e")(quantize, recipe, arguments, path, context)
    return made
