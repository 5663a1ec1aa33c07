"""Exporting: every method becomes a graph without weights."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild import recipes
from etbuild.errors import DocumentPath
from etbuild.inputs import Inputs, Used
from etbuild.plan import Plan, digest
from etbuild.quiet import library_messages_off, stdout_for_results
from etbuild.sources import SourceFinder, importable
from etbuild.steps.stages import Stage, frozen_if_first

if TYPE_CHECKING:
    import torch
    from executorch.export import ExportRecipe
    from torch.export import ExportedProgram

    from etbuild.quantize_weights import Quantized


def export(export_plan: Plan, inputs: Inputs, used: Used, directory: Path, stage: Stage) -> None:
    """Exports every method, and saves the export as `saved_export` describes it.

    Args:
        export_plan: What to export.
        inputs: What may be read.
        used: The sources that it uses.
        directory: Where the export goes: an existing directory, empty.
        stage: Is told of each stage, for progress.

    Raises:
        InputError: A declared input is missing or does not fit.
        BuildError: The module cannot be made or exported.
    """
    with library_messages_off(used.sources), stdout_for_results(), importable(used.sources) as finder:
        with stage("import PyTorch"), frozen_if_first("torch"):
            from etbuild import constants, custom_ops, saved_export
        custom_ops.load(export_plan["custom_ops"], inputs, finder)
        with stage("create the module"):
            root = create_module(export_plan, inputs, finder)
        computed = constants.compute(export_plan, finder)
        reason = saved_export.why_together(export_plan, root)
        if reason is None:
            programs = export_methods(export_plan, Modules(root, finder), inputs, finder, stage)
            try:
                saved_export.write(directory, export_plan, root, programs, computed, inputs, used)
            except saved_export.CannotSave as error:
                reason = str(error)
    if reason is not None:
        print(f"note: the methods are exported when they are lowered, with their weights: {reason}", file=sys.stderr)
        saved_export.write_plan(directory, export_plan, computed, used)


def create_module(
    export_plan: Plan, inputs: Inputs, finder: SourceFinder, weights: Sequence[str] = ()
) -> torch.nn.Module:
    """The module that methods are exported from.

    Args:
        export_plan: What to export.
        inputs: What may be read.
        finder: The declared sources.
        weights: Files of weights that it is exported with, besides those that every export reads.

    Raises:
        InputError: A declared input is missing or does not fit.
        BuildError: The module cannot be made.
    """
    from etbuild import module, tensors

    root = module.create(export_plan, inputs, finder)
    names = [*export_plan["read_weights"], *weights]
    if names:
        root.load_state_dict(tensors.read_weights(names, inputs, tensors.describe_state(root)), strict=False)
    module.settle(root)
    return root


def export_methods(
    export_plan: Plan,
    modules: Modules,
    inputs: Inputs,
    finder: SourceFinder,
    stage: Stage,
    quantized: Callable[[str, torch.fx.GraphModule], object] = lambda name, graph_module: None,
) -> dict[str, ExportedProgram]:
    """The program of each method, in the order of their names. `quantized` is told of each that was quantized after it
    was exported, before it is exported again."""
    from etbuild.export import Exporting, export_method, load_method, transform

    programs = {}
    for name, method in sorted(export_plan["methods"].items()):
        recipe = recipes.load(export_plan["recipe"], finder) if export_plan["recipe"] else None
        what = Exporting(export_plan, inputs, finder, recipe)
        with stage(f"{'quantize and export' if method['quantize'] else 'export'} {name}"):
            if method["program"] is not None:
                program = load_method(export_plan, name, inputs)
            else:
                with modules.of(name, method, recipe) as (module, check):
                    program = export_method(what, name, module, partial(quantized, name))
                    check(program)
            programs[name] = transform(what, name, program)
    return programs


class Modules:
    """The module as methods want its weights: quantized once for all that want them quantized the same way, so that
    they go on sharing them."""

    def __init__(self, module: torch.nn.Module, finder: SourceFinder) -> None:
        self._module = module
        self._finder = finder
        self._quantized: dict[str, Quantized] = {}

    @contextmanager
    def of(
        self, name: str, method: dict[str, Any], recipe: ExportRecipe | None = None
    ) -> Iterator[tuple[torch.nn.Module, Callable[[ExportedProgram], None]]]:
        """The module that a method is exported from, until the context ends, and a check of what was exported."""
        path: DocumentPath = ("methods", name, "quantize", "torchao")
        quantized = self._find(method, recipe, path)
        if quantized is None:
            yield self._module, lambda program: None
            return
        with quantized() as module:
            yield module, partial(quantized.check, path=path)

    def _find(self, method: dict[str, Any], recipe: ExportRecipe | None, path: DocumentPath) -> Quantized | None:
        by_recipe = recipe is not None and "quantize" in method["from_recipe"]
        said = method["quantize"] or {}
        wanted = _weights_of_recipe(recipe) if recipe is not None and by_recipe else said.get("torchao")
        if not wanted:
            return None
        from etbuild.quantize_weights import quantize_as_recipe, quantize_weights

        key = "recipe" if by_recipe else digest(wanted)
        if key not in self._quantized:
            quantize, path = (quantize_as_recipe, ("recipe",)) if by_recipe else (quantize_weights, path)
            self._quantized[key] = quantize(self._module, wanted, path, self._finder)
        return self._quantized[key]


def _weights_of_recipe(recipe: ExportRecipe) -> list[Any] | None:
    return recipe.quantization_recipe and recipe.quantization_recipe.ao_quantization_configs  # type: ignore[no-any-return]
