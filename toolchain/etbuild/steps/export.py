"""Exporting: each method becomes a graph without weights."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from etbuild import notes, plugins
from etbuild.errors import InputError
from etbuild.guard import children
from etbuild.inputs.given import Given
from etbuild.inputs.source_lines import SourceLines
from etbuild.inputs.sources import UsedSources
from etbuild.inputs.step_context import Stage, StepContext, Watch
from etbuild.inputs.user_code import active_finder, importable
from etbuild.key.toolchain import check_installed
from etbuild.plan.parts import Weights
from etbuild.plan.step_plans import ExportPlan
from etbuild.processes.import_without_gc import import_without_gc
from etbuild.steps import method_change
from etbuild.steps.create_module import create_module
from etbuild.surroundings.library_output import library_messages_off, stdout_for_results

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

    from etbuild.export.export_methods import Exporting, PreparedMethod
    from etbuild.model.tensor_facts import Recipe, TensorFacts


def export(
    export_plan: ExportPlan,
    inputs: Given,
    used: UsedSources,
    directory: Path,
    stage: Stage,
    watch: Watch,
    meanwhile: Sequence[Callable[[], None]] = (),
) -> None:
    """Exports every method, and saves the export with `export.archive`.

    This happens in a child process, because code of the model runs. The child ends before lowering begins.

    Args:
        export_plan: What to export.
        inputs: The declared inputs. The export reads no other files.
        used: The sources that the plan uses.
        directory: The directory for the export. It exists and is empty.
        stage: Is called for each stage, to show progress.
        watch: Refuses undeclared reads of the sources.
        meanwhile: The work of this process until the export ends. The process also checks the installed packages.

    Raises:
        InputError: A declared input is missing or does not fit.
        BuildError: The module cannot be made or exported.
    """
    check = functools.partial(check_installed, used.packages)
    try:
        with library_messages_off(), stdout_for_results():
            import_torch(stage)
        children.run_one(
            functools.partial(_export, export_plan, inputs, used, directory, stage, watch), [check, *meanwhile]
        )
    except Exception:
        check()  # an edited package may be the cause of the failure
        raise
    else:
        check()  # the export may have ended before the first check


def _export(
    export_plan: ExportPlan, inputs: Given, used: UsedSources, directory: Path, stage: Stage, watch: Watch
) -> None:
    with library_messages_off(used.sources), stdout_for_results():
        from etbuild.export import archive, quantizers
        from etbuild.export.node_sources import graphs_numbered
        from etbuild.model import packing
        from etbuild.model.module import weights_elsewhere
        from etbuild.model.spilled_tensors import spilled
        from etbuild.surroundings.random_seeds import seed

        seed(export_plan.model.seed)  # modules may draw random numbers during their import
        with importable(used, inputs.data.values(), watch), graphs_numbered(), notes.collected() as said:
            context = StepContext(inputs, stage, lambda tensor, _: spilled(tensor, directory))
            if export_plan.custom_ops.libraries or export_plan.custom_ops.modules:
                from etbuild.export import custom_ops

                custom_ops.load(export_plan.custom_ops, context)
            with stage("create the module"):
                root = create_module(export_plan, context)
            if export_plan.may_be_packed:
                for line in packing.packed_checkpoints().notes(root, export_plan):
                    notes.add(line)
            computed = {**_contract(export_plan, root, inputs), **_constants(export_plan)}
            reason = weights_elsewhere(root) if export_plan.leaves_weights else None
            if reason is None:
                modules = Modules(root, export_plan, deferred=export_plan.leaves_weights)
                try:
                    programs = export_methods(export_plan, modules, context)
                    computed |= _schemas(export_plan, programs)
                    lines = SourceLines.of_programs(programs, active_finder().name_of)
                    new = archive.NewExport(root, programs, computed, used, lines, modules.recipe_of)
                    archive.write(directory, export_plan, new)
                except (archive.CannotSave, quantizers.CannotDefer) as error:
                    reason = str(error)
    if reason is not None:
        if missing := export_plan.constant_schemas.keys() - computed.keys():
            message = f"the methods are not exported before they are lowered: {reason}"
            raise InputError.at(("constant_methods", min(missing)), message, "write the text itself, or a `factory`")
        print(
            f"note: the methods are exported again when they are lowered, with their weights: {reason}", file=sys.stderr
        )
        archive.write_plan(directory, export_plan, computed, used)
    archive.write_notes(directory, said)


def _contract(export_plan: ExportPlan, root: torch.nn.Module, inputs: Given) -> dict[str, object]:
    """The constant methods for the program's runner, and those of the model's task."""
    from etbuild.model.module_sources import maker_of

    maker = maker_of(export_plan.model)
    return {} if maker is None else maker.constants(export_plan, root, inputs)


def _constants(export_plan: ExportPlan) -> dict[str, object]:
    """The constant methods whose values a callable computes."""
    if not export_plan.constant_methods:
        return {}
    from etbuild.export import constant_methods

    return constant_methods.compute(export_plan)


def _schemas(export_plan: ExportPlan, programs: Mapping[str, ExportedProgram]) -> dict[str, object]:
    """The constant methods that describe all methods."""
    forms = export_plan.constant_schemas.items()
    return {n: plugins.load("constant_schema", form)(programs, ("constant_methods", n)) for n, form in forms}


def import_torch(stage: Stage) -> None:
    """Imports PyTorch before a process forks that exports."""
    with stage("import PyTorch"), import_without_gc("torch"):
        from etbuild.export import archive  # noqa: F401
        from etbuild.surroundings import arithmetic

        arithmetic.leave_out_other_libraries()


def prepare_methods(export_plan: ExportPlan, modules: Modules, context: StepContext) -> dict[str, PreparedMethod]:
    """Prepares each method for its export, and quantizes it if needed, sorted by name. Leaves out methods from
    files."""
    from etbuild.export.export_methods import prepare
    from etbuild.export.node_sources import lines_recorded

    prepared = {}
    for name, method in sorted(export_plan.methods.items()):
        if method.program is None:
            with context.stage(f"prepare {name}"), lines_recorded(), modules.module_for(name) as (module, _):
                prepared[name] = prepare(_exporting(export_plan, context), name, module)
    return prepared


def export_methods(
    export_plan: ExportPlan,
    modules: Modules,
    context: StepContext,
    prepared: Mapping[str, PreparedMethod] = MappingProxyType({}),
) -> dict[str, ExportedProgram]:
    """The exported program of each method, sorted by name.

    If the programs contain their weights, `method_tensors.rename_differing` renames those that differ between methods.

    Args:
        export_plan: What to export.
        modules: The module, for each method.
        context: What every step needs.
        prepared: Prepared methods. They are exported without changes.
    """
    from etbuild.export.export_methods import export_method, load_method, prepare, transform
    from etbuild.export.node_sources import lines_recorded
    from etbuild.export.written_buffers import check_overlaps
    from etbuild.model.method_tensors import rename_differing

    programs = {}
    for name, method in sorted(export_plan.methods.items()):
        action = "quantize and export" if method.quantize and name not in prepared else "export"
        with context.stage(f"{action} {name}"), lines_recorded():
            if method.program is not None:
                job = _exporting(export_plan, context)
                program = load_method(export_plan, name, context.inputs)
            else:
                with modules.module_for(name) as (module, check):
                    one = prepared.get(name) or prepare(_exporting(export_plan, context), name, module)
                    job, program = one.job, export_method(one)
                    check(program)
            programs[name] = transform(job, name, program)
    of_module = {name: program for name, program in programs.items() if export_plan.methods[name].program is None}
    check_overlaps(of_module, modules.overlaps)
    if export_plan.model.precision is not None:
        method_change.precision().convert(modules.module, programs, export_plan)
    if export_plan.carries_content:
        rename_differing(programs, modules.recipe_of)
    return programs


def _exporting(export_plan: ExportPlan, context: StepContext) -> Exporting:
    """The settings for exporting one method. Each method gets its own recipe object."""
    from etbuild.export.export_methods import Exporting

    if export_plan.recipe is None:
        return Exporting(export_plan, context, None)
    from etbuild.export.recipe import load_recipe

    return Exporting(export_plan, context, load_recipe(export_plan.recipe))


def export_with_weights(
    export_plan: ExportPlan, context: StepContext, weights: Weights, adapters: Mapping[str, str]
) -> tuple[list[TensorFacts], dict[str, ExportedProgram]]:
    """Exports methods with their weights: the module itself decides how its weights are loaded.

    Args:
        export_plan: What to export.
        context: What every step needs.
        weights: Checkpoints to load, besides those that every export reads.
        adapters: The declared file with the weights of each adapter, by the adapter's name. They are checked.

    Returns:
        Facts about the tensors of the methods, and the methods by name.
    """
    with context.stage("create the module"):
        root = create_module(export_plan, context, weights, in_place=True)
        if adapters:
            from etbuild.model import weights_files

            method_change.adapters().check_weights(adapters, weights_files.describe(root, False), context.inputs)
    programs = export_methods(export_plan, Modules(root, export_plan), context)
    return tensors_of(export_plan, root, programs), programs


def tensors_of(
    export_plan: ExportPlan, root: torch.nn.Module, programs: dict[str, ExportedProgram]
) -> list[TensorFacts]:
    """Facts about the tensors of methods that were exported with their weights, in the order of the module."""
    from etbuild.model import weights_files
    from etbuild.model.method_tensors import carried

    facts = weights_files.describe(root, export_plan.leaves_weights)
    return carried(programs, [entry.name for entry in facts])[0] if export_plan.carries_content else facts


class Modules:
    """The module for each method: with the method's quantized weights and adapter."""

    def __init__(
        self,
        module: torch.nn.Module,
        export_plan: ExportPlan,
        *,
        free: bool = True,
        deferred: bool = False,
    ) -> None:
        """The arguments are those of `QuantizedModules`."""
        from etbuild.export import quantizers

        self.module = module
        self._export_plan = export_plan
        quantizes = export_plan.quantizes
        self._quantized = quantizers.of_weights()(module, export_plan, free, deferred) if quantizes else None

    @property
    def overlaps(self) -> dict[str, set[str]]:
        """The parameters and buffers that share memory, each with the names of the others."""
        from etbuild.model.module import overlaps

        return overlaps(self.module)

    def recipe_of(self, tensor: torch.Tensor) -> Recipe | None:
        """How the content of a method's tensor is computed from a weight; None if it has its content."""
        return None if self._quantized is None else self._quantized.recipe_of(tensor)

    @contextmanager
    def module_for(self, name: str) -> Iterator[tuple[torch.nn.Module, Callable[[ExportedProgram], None]]]:
        """Yields the module to export a method from, and a check of the exported program, for this context."""
        quantized = None if self._quantized is None else self._quantized.module_for(name)
        applied: AbstractContextManager[Callable[[ExportedProgram], None]] = nullcontext(lambda _: None)
        plan = self._export_plan
        if plan.adapters:
            applied = method_change.adapters().applied(self.module, name, plan.methods[name].adapter)
        with applied as check_adapter, nullcontext() if quantized is None else quantized():

            def check(program: ExportedProgram) -> None:
                if quantized is not None:
                    quantized.check(program)
                check_adapter(program)

            yield self.module, check
