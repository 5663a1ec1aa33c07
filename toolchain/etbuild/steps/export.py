"""Exporting: each method becomes a graph without weights."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from etbuild import notes
from etbuild.files.digests import digest
from etbuild.inputs.given import Given
from etbuild.inputs.source_lines import SourceLines
from etbuild.inputs.sources import UsedSources
from etbuild.inputs.step_context import Stage, StepContext, Watch
from etbuild.inputs.toolchain import check_installed
from etbuild.inputs.user_code import active_finder, importable
from etbuild.plan.parts import Weights
from etbuild.plan.step_plans import ExportPlan
from etbuild.processes.import_without_gc import import_without_gc
from etbuild.processes.library_output import library_messages_off, stdout_for_results
from etbuild.steps import apart, method_change
from etbuild.steps.create_module import create_module, packing_of_module

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

    from etbuild.export.export_methods import Exporting, PreparedMethod
    from etbuild.model.tensor_facts import Recipe, TensorFacts
    from etbuild.quantize.deferred import Deferred
    from etbuild.quantize.torchao_weights import Quantized


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

    All of this happens in a child process, because code of the model runs: it ends before lowering begins.

    Args:
        export_plan: What to export.
        inputs: The declared inputs. The export reads no other files.
        used: The sources that the plan uses.
        directory: The directory for the export. It exists and is empty.
        stage: Is called for each stage, to show progress.
        watch: Refuses what the sources read and do not declare.
        meanwhile: What this process does until the export ends. It also checks the installed packages.

    Raises:
        InputError: A declared input is missing or does not fit.
        BuildError: The module cannot be made or exported.
    """
    check = functools.partial(check_installed, used.packages)
    try:
        with library_messages_off(), stdout_for_results():
            _import_torch(stage)
        apart.run_one(
            functools.partial(_export, export_plan, inputs, used, directory, stage, watch), [check, *meanwhile]
        )
    except Exception:
        check()  # a package that was edited may be why the export failed
        raise
    else:
        check()  # the export may have ended before this process looked


def _export(
    export_plan: ExportPlan, inputs: Given, used: UsedSources, directory: Path, stage: Stage, watch: Watch
) -> None:
    with library_messages_off(used.sources), stdout_for_results():
        from etbuild.export import archive
        from etbuild.export.provenance import graphs_numbered
        from etbuild.processes.random_seeds import seed

        seed(export_plan.model.seed)  # modules may draw numbers when they are imported
        with importable(used, inputs.data.values(), watch), graphs_numbered(), notes.collected() as said:
            context = StepContext(inputs, stage, directory)
            if export_plan.custom_ops.libraries or export_plan.custom_ops.modules:
                from etbuild.export import custom_ops

                custom_ops.load(export_plan.custom_ops, context)
            with stage("create the module"):
                root = create_module(export_plan, context)
            for line in packing_notes(root, export_plan):
                notes.add(line)
            computed = {**_contract(export_plan, root, inputs), **_constants(export_plan)}
            reason = archive.reexport_reason(export_plan, root)
            if reason is None:
                modules = Modules(root, export_plan, deferred=export_plan.weights)
                try:
                    programs = export_methods(export_plan, modules, context)
                    lines = SourceLines.of_programs(programs, active_finder().name_of)
                    new = archive.NewExport(root, programs, computed, used, lines, modules.recipe_of)
                    archive.write(directory, export_plan, new)
                except archive.CannotSave as error:
                    reason = str(error)
    if reason is not None:
        print(
            f"note: the methods are exported again when they are lowered, with their weights: {reason}", file=sys.stderr
        )
        archive.write_plan(directory, export_plan, computed, used)
    archive.write_notes(directory, said)


def packing_notes(root: torch.nn.Module, export_plan: ExportPlan) -> list[str]:
    """What happens to the weights of a packed checkpoint, for users."""
    packed = packing_of_module(root, export_plan)
    wanted, lines = False, list[str]()
    if export_plan.read_weights:
        from etbuild.model.packed import kept

        found = kept.of(root)
        wanted, lines = bool(found.kinds), [*found.lines()]
    if packed is not None and not lines and (export_plan.weights or export_plan.read_weights):
        again = ", and `quantize` quantizes them again" if export_plan.carries_content and not wanted else ""
        keep = "`quantize: {torchao: [{config: packed}, ...]}` keeps the integers that XNNPACK can hold"
        why = "they have no integers that a layer can hold" if wanted else keep
        lines.append(f"packed weights ({packed.method}) are dequantized{again}: {why}")
    return lines


def _contract(export_plan: ExportPlan, root: torch.nn.Module, inputs: Given) -> dict[str, object]:
    """The constant methods that the runner of the program asks for, and those of the model's task."""
    if export_plan.runner is None:
        if export_plan.model.huggingface is None:
            return {}
        from etbuild.model import single_call

        return single_call.constants(root, export_plan.model.huggingface)
    from etbuild.export import runner_contract

    return runner_contract.constants(export_plan, root, inputs)


def _constants(export_plan: ExportPlan) -> dict[str, object]:
    """The constant methods whose values a callable computes."""
    if not export_plan.constant_methods:
        return {}
    from etbuild.export import constant_methods

    return constant_methods.compute(export_plan)


def _import_torch(stage: Stage) -> None:
    with stage("import PyTorch"), import_without_gc("torch"):
        from etbuild.export import archive  # noqa: F401
        from etbuild.processes import arithmetic

        arithmetic.leave_out_other_libraries()


def prepare_methods(export_plan: ExportPlan, modules: Modules, context: StepContext) -> dict[str, PreparedMethod]:
    """Prepares each method for its export, and quantizes it if needed, sorted by name. Leaves out methods from
    files."""
    from etbuild.export.export_methods import prepare
    from etbuild.export.line_traces import recorded

    prepared = {}
    for name, method in sorted(export_plan.methods.items()):
        if method.program is None:
            with context.stage(f"prepare {name}"), recorded(), modules.of(name) as (module, _):
                prepared[name] = prepare(_exporting(export_plan, context), name, module)
    return prepared


def export_methods(
    export_plan: ExportPlan,
    modules: Modules,
    context: StepContext,
    prepared: Mapping[str, PreparedMethod] = MappingProxyType({}),
) -> dict[str, ExportedProgram]:
    """The exported program of each method, sorted by name.

    If the programs contain their weights, `method_tensors.name_apart` renames those that differ between methods.

    Args:
        export_plan: What to export.
        modules: The module, for each method.
        context: What every step needs.
        prepared: Methods that are prepared. They are exported as they are.
    """
    from etbuild.export.export_methods import export_method, load_method, prepare, transform
    from etbuild.export.line_traces import recorded
    from etbuild.export.written_buffers import check_overlaps
    from etbuild.model.method_tensors import name_apart

    programs = {}
    for name, method in sorted(export_plan.methods.items()):
        action = "quantize and export" if method.quantize and name not in prepared else "export"
        with context.stage(f"{action} {name}"), recorded():
            if method.program is not None:
                job = _exporting(export_plan, context)
                program = load_method(export_plan, name, context.inputs)
            else:
                with modules.of(name) as (module, check):
                    one = prepared.get(name) or prepare(_exporting(export_plan, context), name, module)
                    job, program = one.job, export_method(one)
                    check(program)
            programs[name] = transform(job, name, program)
    of_module = {name: program for name, program in programs.items() if export_plan.methods[name].program is None}
    check_overlaps(of_module, modules.overlaps)
    if export_plan.carries_content:
        name_apart(programs, modules.recipe_of)
    return programs


def _exporting(export_plan: ExportPlan, context: StepContext) -> Exporting:
    """The context for exporting one method. Each method gets its own recipe object."""
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
        weights: Checkpoints to load, in addition to those that every export reads.
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

    facts = weights_files.describe(root, export_plan.weights)
    return carried(programs, [entry.name for entry in facts])[0] if export_plan.carries_content else facts


class Modules:
    """The module with the weights that each method needs. Weights are quantized once for all methods that quantize them
    in the same way, so that these methods still share them."""

    def __init__(
        self,
        module: torch.nn.Module,
        export_plan: ExportPlan,
        *,
        free: bool = True,
        deferred: bool = False,
    ) -> None:
        """Args:
        module: The module with its weights.
        export_plan: How its methods are quantized.
        free: Whether the weights before quantization may be freed when no method needs them. The module cannot be
            used without quantization afterwards.
        deferred: Whether the content of the weights is not known yet, and quantized weights are computed later.
        """
        self._module = module
        self._export_plan = export_plan
        self._quantized: dict[str, Quantized] = {}
        self._are_deferred = deferred
        self._deferred: Deferred | None = None
        of_module = [name for name, method in export_plan.methods.items() if method.program is None]
        self._free = free and len({self._how(name) for name in of_module}) == 1

    @property
    def overlaps(self) -> dict[str, set[str]]:
        """The parameters and buffers that share memory, each with the names of the others."""
        from etbuild.model.module import overlaps

        return overlaps(self._module)

    @contextmanager
    def of(self, name: str) -> Iterator[tuple[torch.nn.Module, Callable[[ExportedProgram], None]]]:
        """Yields the module to export a method from, and a check of the exported program. It is valid inside."""
        quantized = self._find(name)
        applied: AbstractContextManager[Callable[[ExportedProgram], None]] = nullcontext(lambda _: None)
        plan = self._export_plan
        if plan.adapters:
            applied = method_change.adapters().applied(self._module, name, plan.methods[name].adapter)
        with applied as check_adapter, nullcontext() if quantized is None else quantized():

            def check(program: ExportedProgram) -> None:
                if quantized is not None:
                    quantized.check(program)
                check_adapter(program)

            yield self._module, check

    def _how(self, name: str) -> str | None:
        """What methods have in common whose weights are quantized in the same way; None: they are not quantized."""
        method = self._export_plan.methods[name]
        torchao, pt2e = method.quantize.torchao if method.quantize is not None else (), method.pt2e
        # A `pt2e` without quantizers lets the recipe decide what is quantized.
        if "quantize" in method.from_recipe or (not torchao and pt2e is not None and not pt2e.quantizers):
            return "recipe"
        return digest([entry.to_json() for entry in torchao]) if torchao else None

    def _find(self, name: str) -> Quantized | None:
        how = self._how(name)
        if how is None:
            return None
        if how not in self._quantized:
            made = self._quantize_by_recipe() if how == "recipe" else self._quantize(name)
            if made is None:
                return None
            self._quantized[how] = made
        return self._quantized[how]

    def _quantize(self, name: str) -> Quantized:
        from etbuild.quantize.torchao_weights import quantize_weights

        quantize = self._export_plan.methods[name].quantize
        assert quantize is not None
        path = ("methods", name, "quantize", "torchao")
        called = [layer for module in self._called(name) for layer in module.modules()]
        how = quantize.torchao, path, self._free, called
        if not self._are_deferred:
            return quantize_weights(self._module, *how)
        from etbuild.export.archive import CannotSave
        from etbuild.quantize.deferred import CannotDefer, Deferred

        self._deferred = self._deferred or Deferred()
        try:
            return quantize_weights(self._module, *how, self._deferred)
        except CannotDefer as error:
            raise CannotSave(str(error)) from error

    def recipe_of(self, tensor: torch.Tensor) -> Recipe | None:
        """How the content of a tensor of the methods is computed from a weight; None if the tensor has its content."""
        return None if self._deferred is None else self._deferred.recipe(tensor)

    def _called(self, name: str) -> Iterator[torch.nn.Module]:
        """The modules that a method and those that are quantized like it call: `embedder`, for `embedder.embed`."""
        how = self._how(name)
        for method in [method for other, method in self._export_plan.methods.items() if self._how(other) == how]:
            called = self._module
            for part in method.entry.split("."):
                if (child := called._modules.get(part)) is None:
                    break
                called = child
            yield called

    def _quantize_by_recipe(self) -> Quantized | None:
        from etbuild.export.recipe import load_recipe

        assert self._export_plan.recipe is not None
        wanted = load_recipe(self._export_plan.recipe).quantization_recipe
        configs = wanted and wanted.ao_quantization_configs
        if not configs:
            return None
        from etbuild.quantize.torchao_weights import Quantized

        changes = [(config.ao_base_config, config.filter_fn, ("recipe",)) for config in configs]
        return Quantized(self._module, changes, ("recipe",), self._free)
