"""The inputs of lowering and comparing: the export, and the weights that it leaves out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from etbuild import backends, releases
from etbuild.export.kept_weights import KeptWeights
from etbuild.export.layout import ExportFiles
from etbuild.inputs.given import Given
from etbuild.inputs.sources import UsedSources, read_sources
from etbuild.inputs.step_context import Stage, StepContext, Watch
from etbuild.inputs.user_code import active_finder, importable
from etbuild.plan.step_plans import LowerPlan, MethodPlan
from etbuild.processes.import_without_gc import import_without_gc
from etbuild.steps.lowering_options import LoweringOptions
from etbuild.steps.method_change import adapters
from etbuild.surroundings import arithmetic
from etbuild.surroundings.library_output import library_messages_off, stdout_for_results

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

    from etbuild.export.read_archive import Content, SavedExport

PlanT_co = TypeVar("PlanT_co", bound=MethodPlan, covariant=True)


@dataclass(frozen=True)
class LoweringJob(Generic[PlanT_co]):
    """What to lower, and how.

    Attributes:
        plan: The lower plan; for one method by itself, its part.
        export: The files that the export wrote.
        inputs: The declared inputs: weights, and the inputs of exporting if the export has no methods.
        stage: Is called for each stage, to show progress.
        watch: Refuses undeclared reads of the sources.
        options: How lowering runs.
        computed: The places for weights that are computed from others. None: they are not kept.
    """

    plan: PlanT_co
    export: ExportFiles
    inputs: Given
    stage: Stage
    watch: Watch
    options: LoweringOptions
    computed: KeptWeights | None = None


def joint_lowering_reason(lower_plan: MethodPlan, export: ExportFiles, *, several: bool) -> str | None:
    """The reason why methods must be lowered together, for users; None if there is none."""
    if export.needs_reexport:
        return "its export has no methods without their weights"
    if not releases.fitting():
        return "this version of torch or ExecuTorch is not known"
    return looks_at_others(lower_plan) if several else None


def looks_at_others(lower_plan: MethodPlan) -> str | None:
    """The part of lowering that may look at several methods at once, for users; None if there is none."""
    passes = lower_plan.passes
    if not backends.separable(lower_plan.backends):
        return "one of its backends may look at several methods"
    if lower_plan.recipe is not None:
        return "its recipe may look at several methods"
    if passes.edge or passes.edge_manager or passes.executorch:
        return "its passes may look at several methods"
    if not lower_plan.has_default_edge_compile:
        return "its `edge_compile` is not ExecuTorch's own"
    if lower_plan.executorch.emit_mutable_buffer_names:
        return "ExecuTorch numbers buffers with names after the constants of other methods"
    if any(":" in memory.memory_planning_algo for memory in lower_plan.memory_planning.values()):
        return "its memory planning algorithm may look at several methods"
    return None


def needs_weights(lower_plan: MethodPlan) -> str | None:
    """Why lowering certainly needs the content of weights, for users; None if that is not known before."""
    # Other people's code may change a weight in place, so that its content differs from its file.
    if (reason := looks_at_others(lower_plan)) is not None:
        return reason
    return "a backend compiles them" if backends.compiles_weights(lower_plan.backends) else None


def runs_code_of_others(plan: MethodPlan, saved: SavedExport) -> bool:
    """Whether lowering runs code of the user, or of a backend that may do anything."""
    imported = saved.sources or plan.custom_ops.modules or plan.custom_ops.libraries
    return bool(imported) or looks_at_others(plan) is not None


@contextmanager
def opened_export(
    job: LoweringJob[MethodPlan], used: UsedSources | None = None
) -> Iterator[tuple[SavedExport, StepContext]]:
    """Imports PyTorch, and reads the export. Within this context, its sources can be imported, or the given ones."""
    with pytorch_imported(job):
        from etbuild.export import read_archive

        saved = read_archive.read(job.export)
        sources = read_sources(saved.sources) if used is None else used
        with sources_importable(job, sources) as context:
            active_finder().lines = job.export.lines
            if used is None:  # these are copies, so their place has no meaning
                active_finder().here = None
            yield saved, context


@contextmanager
def pytorch_imported(job: LoweringJob[MethodPlan]) -> Iterator[None]:
    """Imports PyTorch. Within this context, libraries print nothing, and standard output is for results."""
    with library_messages_off(), stdout_for_results():
        releases.check()
        with job.stage("import PyTorch"), import_without_gc("torch"):
            from etbuild.export import read_archive  # noqa: F401
        yield


@contextmanager
def sources_importable(job: LoweringJob[MethodPlan], used: UsedSources) -> Iterator[StepContext]:
    """Makes sources importable within this context, after PyTorch."""
    from etbuild.export.node_sources import graphs_numbered
    from etbuild.surroundings.random_seeds import seed

    arithmetic.leave_out_other_libraries()
    seed(0)  # for passes and partitioners that draw random numbers; the export makes weights
    with importable(used, job.inputs.data.values(), job.watch), graphs_numbered():
        yield StepContext(job.inputs, job.stage)


def open_content(job: LoweringJob[MethodPlan], saved: SavedExport, needed: Collection[str] | None = None) -> Content:
    """The content of the methods' parameters and buffers.

    Args:
        job: The methods.
        saved: The export.
        needed: The names of the parameters and buffers to read. None: all.
    """
    from etbuild.export.read_archive import Content

    plan = job.plan
    if isinstance(plan, LowerPlan) and plan.adapters:
        adapters().check_weights(plan.adapters, saved.tensors, job.inputs)
    return Content(saved, _weights(job, saved, needed), needed)


def _weights(
    job: LoweringJob[MethodPlan], saved: SavedExport, needed: Collection[str] | None
) -> Callable[[str], torch.Tensor]:
    """A function that reads a tensor by name: from weights files, or computed from their tensors."""
    if not job.plan.weights:
        return dict[str, "torch.Tensor"]().__getitem__  # the export has the content of all tensors
    from etbuild.model.checkpoint import CheckpointTensors

    checkpoint = CheckpointTensors(job.plan.weights, job.inputs, saved.in_weights, job.plan.cast, packing=saved.packing)
    if all(entry.computed is None for entry in saved.tensors):
        return checkpoint.tensor
    from etbuild.export import quantizers

    return quantizers.of_recipes().read(saved, checkpoint, needed, job.computed)


def load_custom_ops(plan: MethodPlan, context: StepContext) -> None:
    """Registers the custom operators of a plan. Errors are those of `custom_ops.load`."""
    if plan.custom_ops.libraries or plan.custom_ops.modules:
        from etbuild.export import custom_ops

        custom_ops.load(plan.custom_ops, context)


def load_methods(
    saved: SavedExport, content: dict[str, torch.Tensor], names: Iterable[str]
) -> dict[str, ExportedProgram]:
    """Reads exported methods, with their weights and the modules that they need. Errors are those of `read_archive`."""
    from etbuild.export import read_archive

    _import_modules(saved)
    return read_archive.load_methods(saved, content, names)


def _import_modules(saved: SavedExport) -> None:
    """Imports the modules that define the graphs' operators and types outside of PyTorch."""
    from etbuild.inputs.user_code import import_module

    for name in saved.imports:
        import_module(name, ("model", "factory"))
