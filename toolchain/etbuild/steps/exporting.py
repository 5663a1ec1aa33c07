"""Exporting: every method becomes a graph without weights."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from etbuild import recipes
from etbuild.errors import DocumentPath
from etbuild.inputs import Inputs, Used
from etbuild.plan import Plan, carries_content, digest
from etbuild.quiet import library_messages_off, stdout_for_results
from etbuild.sources import SourceFinder, importable
from etbuild.steps.stages import Stage, frozen_if_first

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

    from etbuild.export import Exporting, Ready
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
    with library_messages_off(used.sources), stdout_for_results():
        with stage("import PyTorch"), frozen_if_first("torch"):
            from etbuild import constants, custom_ops, saved_export
        with importable(used, inputs.data.values()) as finder:
            custom_ops.load(export_plan["custom_ops"], inputs, finder)
            with stage("create the module"):
                root = create_module(export_plan, inputs, finder)
            computed = constants.compute(export_plan, finder)
            reason = saved_export.why_together(export_plan, root)
            if reason is None:
                programs = export_methods(export_plan, Modules(root, export_plan, finder), inputs, finder, stage)
                try:
                    saved_export.write(directory, export_plan, root, programs, computed, used)
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


def make_methods_ready(
    export_plan: Plan, modules: Modules, inputs: Inputs, finder: SourceFinder, stage: Stage
) -> dict[str, Ready]:
    """Each method that is not in a file, quantized where it has to be, in the order of their names."""
    from etbuild.export import make_ready

    made = {}
    for name, method in sorted(export_plan["methods"].items()):
        if method["program"] is None:
            with stage(f"make {name} ready"), modules.of(name) as (module, _):
                made[name] = make_ready(_exporting(export_plan, inputs, finder), name, module)
    return made


def export_methods(
    export_plan: Plan,
    modules: Modules,
    inputs: Inputs,
    finder: SourceFinder,
    stage: Stage,
    ready: Mapping[str, Ready] = MappingProxyType({}),
) -> dict[str, ExportedProgram]:
    """The program of each method, in the order of their names. Those that are `ready` are exported as they are.

    Where they hold their weights, other content has another name: see `carried`.
    """
    from etbuild.carried import name_apart
    from etbuild.export import export_method, load_method, make_ready, transform

    programs = {}
    for name, method in sorted(export_plan["methods"].items()):
        with stage(f"{'quantize and export' if method['quantize'] and name not in ready else 'export'} {name}"):
            if method["program"] is not None:
                what = _exporting(export_plan, inputs, finder)
                program = load_method(export_plan, name, inputs)
            else:
                with modules.of(name) as (module, check):
                    one = ready.get(name) or make_ready(_exporting(export_plan, inputs, finder), name, module)
                    what, program = one.what, export_method(one)
                    check(program)
            programs[name] = transform(what, name, program)
    if carries_content(export_plan):
        name_apart(programs)
    return programs


def _exporting(export_plan: Plan, inputs: Inputs, finder: SourceFinder) -> Exporting:
    """What one method is exported with: its recipe is its own."""
    from etbuild.export import Exporting

    recipe = recipes.load(export_plan["recipe"], finder) if export_plan["recipe"] else None
    return Exporting(export_plan, inputs, finder, recipe)


class Modules:
    """The module as methods want its weights: quantized once for all that want them quantized the same way, so that
    they go on sharing them."""

    def __init__(self, module: torch.nn.Module, export_plan: Plan, finder: SourceFinder) -> None:
        self._module = module
        self._export_plan = export_plan
        self._finder = finder
        self._quantized: dict[str, Quantized] = {}

    @contextmanager
    def of(self, name: str) -> Iterator[tuple[torch.nn.Module, Callable[[ExportedProgram], None]]]:
        """The module that a method is exported from, until the context ends, and a check of what was exported."""
        quantized = self._find(name)
        if quantized is None:
            yield self._module, lambda program: None
            return
        with quantized() as module:
            yield module, quantized.check

    def _find(self, name: str) -> Quantized | None:
        method = self._export_plan["methods"][name]
        said = method["quantize"] or {}
        # A `pt2e` without quantizers leaves to the recipe what is quantized.
        by_recipe = "quantize" in method["from_recipe"] or (
            not said.get("torchao") and said.get("pt2e") is not None and not said["pt2e"]["quantizers"]
        )
        wanted = self._configs_of_recipe() if by_recipe else said.get("torchao")
        if not wanted:
            return None
        from etbuild.quantize_weights import quantize_as_recipe, quantize_weights

        key = "recipe" if by_recipe else digest(wanted)
        if key not in self._quantized:
            quantize = quantize_as_recipe if by_recipe else quantize_weights
            path: DocumentPath = ("recipe",) if by_recipe else ("methods", name, "quantize", "torchao")
            self._quantized[key] = quantize(self._module, wanted, path, self._finder)
        return self._quantized[key]

    def _configs_of_recipe(self) -> list[Any] | None:
        wanted = recipes.load(self._export_plan["recipe"], self._finder).quantization_recipe
        return wanted and wanted.ao_quantization_configs  # type: ignore[no-any-return]
