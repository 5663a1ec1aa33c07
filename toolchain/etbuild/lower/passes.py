"""Loads the passes of the manifest from declared sources, for each hook point.

The hook points and the arguments of the callables are those of ExecuTorch's `ExportRecipe`: `aten_transform_passes`,
`edge_transform_passes`, `edge_manager_transform_passes`, and `ExecutorchBackendConfig.passes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from executorch.exir import EdgeProgramManager
from torch.export import ExportedProgram
from torch.fx.passes.infra.pass_manager import PassManager

from etbuild.errors import BuildError, DocumentPath
from etbuild.inputs.user_code import load_callable, wrap_user_error
from etbuild.plan.kinds import Names
from etbuild.plan.step_plans import MethodPlan

if TYPE_CHECKING:
    from executorch.export import LoweringRecipe


def edge(
    lower_plan: MethodPlan, programs: dict[str, ExportedProgram], recipe: LoweringRecipe | None
) -> dict[str, list[Any]]:
    """The passes that run on each method in the edge dialect before it is partitioned.

    Args:
        lower_plan: The lower plan.
        programs: The exported program of each method, by name.
        recipe: The recipe, if the manifest names one.

    Returns:
        The passes by method, for methods that have any: those of the recipe, then those of the manifest.

    Raises:
        BuildError: A callable failed, or did not return a list of passes.
    """
    of_recipe = recipe and recipe.edge_transform_passes
    by_method: dict[str, list[Any]] = {}
    for name, program in sorted(programs.items()):
        for reference, path, function in _callables("edge", lower_plan.passes.edge, of_recipe):
            with wrap_user_error(path, f"`{reference}` for the method `{name}`"):
                result = function(name, program)
            by_method.setdefault(name, []).extend(_checked(result, reference, path))
    return by_method


def edge_manager(
    lower_plan: MethodPlan, lowered: EdgeProgramManager, recipe: LoweringRecipe | None
) -> EdgeProgramManager:
    """Runs the passes for lowered methods: those of the recipe, then those of the manifest.

    Args:
        lower_plan: The lower plan.
        lowered: The lowered methods.
        recipe: The recipe, if the manifest names one.

    Returns:
        The methods after all passes.

    Raises:
        BuildError: A callable or a pass failed, or a callable did not return passes.
    """
    of_recipe = recipe and recipe.edge_manager_transform_passes
    for reference, path, function in _callables("edge_manager", lower_plan.passes.edge_manager, of_recipe):
        with wrap_user_error(path, f"`{reference}`"):
            result = function(lowered)
            passes = result if isinstance(result, dict) else _checked(result, reference, path)
            if isinstance(result, dict):
                passes = {name: _checked(part, reference, path) for name, part in result.items()}
            lowered = lowered.transform(passes) if passes else lowered
    return lowered


def executorch(lower_plan: MethodPlan) -> list[Any]:
    """The manifest's passes that run on each method before its memory is planned.

    Args:
        lower_plan: The lower plan.

    Raises:
        BuildError: A callable failed, or did not return a list of passes.
    """
    passes = []
    for reference, path, function in _callables("executorch", lower_plan.passes.executorch):
        with wrap_user_error(path, f"`{reference}`"):
            result = function()
        passes += _checked(result, reference, path)
    return passes


def _callables(
    hook: str, references: Names, of_recipe: Sequence[Callable[..., Any]] | None = None
) -> list[tuple[str, DocumentPath, Callable[..., Any]]]:
    first: list[tuple[str, DocumentPath, Callable[..., Any]]] = [
        ("a pass of the recipe", ("recipe",), function) for function in of_recipe or ()
    ]
    paths = [(reference, ("passes", hook, index)) for index, reference in enumerate(references)]
    return [*first, *((reference, path, load_callable(reference, path)) for reference, path in paths)]


def _checked(result: Any, reference: str, path: DocumentPath) -> list[Any]:
    """Checks the result of a callable, and returns it as a list of passes."""
    if isinstance(result, PassManager):
        if result.steps != 1 or result.constraints:
            message = f"`{reference}` returned a PassManager with steps or constraints"
            raise BuildError.at(path, message, "return a list of passes in their order")
        result = result.passes
    if not isinstance(result, (list, tuple)):
        message = f"`{reference}` returned {type(result).__name__}, not a list of passes"
        raise BuildError.at(path, message)
    strangers = [entry for entry in result if not callable(entry)]
    if strangers:
        message = f"`{reference}` returned {type(strangers[0]).__name__} among its passes, which is not callable"
        raise BuildError.at(path, message)
    return list(result)
