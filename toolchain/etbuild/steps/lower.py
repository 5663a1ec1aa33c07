"""Lowering: the methods become one program. They are lowered one by one if that gives the same result."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from etbuild import backends, releases
from etbuild.accelerate import accelerated, importing
from etbuild.errors import printable
from etbuild.export.layout import ExportFiles
from etbuild.files import artifacts
from etbuild.files.digests import file_digest
from etbuild.foreign_errors import wrap_system_errors
from etbuild.inputs.declared import Inputs
from etbuild.inputs.import_graph import read_sources
from etbuild.inputs.step_context import Stage, StepContext, silent
from etbuild.inputs.toolchain import check_installed
from etbuild.inputs.user_code import SourceFinder, importable
from etbuild.lower import weight_sharing
from etbuild.plan.plan import ExportPlan, LowerPlan, MethodPlan
from etbuild.processes import arithmetic
from etbuild.processes.library_output import library_messages_off, stdout_for_results
from etbuild.results import LoweringFacts, WeightDigests
from etbuild.steps import apart
from etbuild.steps.export import Modules, create_module, export_methods
from etbuild.steps.report import LOWERING_SCHEMA, write_json
from etbuild.steps.resources import Effort
from etbuild.steps.stages import frozen_if_first

if TYPE_CHECKING:
    import torch
    from executorch.exir import ExecutorchProgramManager
    from torch.export import ExportedProgram

    from etbuild.emit.emit_methods import Emitted
    from etbuild.export.archive import SavedExport
    from etbuild.model.weights_files import TensorFacts


PlanT_co = TypeVar("PlanT_co", bound=MethodPlan, covariant=True)


@dataclass(frozen=True)
class Lowering(Generic[PlanT_co]):
    """What to lower, and how.

    Attributes:
        plan: The lower plan. For one method by itself, its part is enough.
        export: The files that the export wrote.
        inputs: The declared inputs: weights, and for an export without methods also what exporting reads.
        stage: Is called for each stage, to show progress.
        effort: How lowering runs.
    """

    plan: PlanT_co
    export: ExportFiles
    inputs: Inputs
    stage: Stage
    effort: Effort


def separable(lower_plan: LowerPlan, export: ExportFiles) -> bool:
    """Whether the methods of a program can be lowered one by one, which gives the same program."""
    return _why_together(lower_plan, export, several=len(lower_plan.methods) > 1) is None


def _why_together(lower_plan: MethodPlan, export: ExportFiles, *, several: bool) -> str | None:
    """The reason why methods must be lowered together, for users; None if there is none."""
    if export.together:
        return "its export has no methods without their weights"
    if not releases.fitting():
        return "this version of torch or ExecuTorch is not known"
    return _looks_at_others(lower_plan) if several else None


def _looks_at_others(lower_plan: MethodPlan) -> str | None:
    """What may look at several methods at once."""
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


def lower(what: Lowering[LowerPlan], directory: Path) -> list[artifacts.Artifact]:
    """Lowers the methods of an export to one program, with their weights.

    Args:
        what: The methods.
        directory: An existing directory for `NAME.pte`, the named data and `NAME.lowering.json`.

    Returns:
        The artifacts, in that order.

    Raises:
        InputError: A declared input is missing or does not fit.
        BuildError: The methods cannot be lowered, or the program cannot be written.
    """
    if what.effort.accelerate and len(what.plan.methods) > 1 and separable(what.plan, what.export):
        with artifacts.staging(directory) as staged:
            methods = {name: staged / name for name in what.plan.methods}
            for path in methods.values():
                path.mkdir()
            lower_methods(what, methods)
            return merge(what, methods, directory)
    with _lowering(what) as (saved, context):
        return _lower_apart(_with_constants(what, saved), saved, context, directory)


def lower_recorded(
    what: Lowering[LowerPlan], directory: Path, look: Callable[[ExecutorchProgramManager], None]
) -> list[artifacts.Artifact]:
    """Lowers all methods together, and keeps what an ETRecord needs. The program is the same.

    Args:
        what: The methods.
        directory: An existing directory for `NAME.pte`, the named data and `NAME.lowering.json`.
        look: Gets what ExecuTorch has emitted, which has an ETRecord.

    Returns:
        The artifacts and the errors are those of `lower`.
    """
    with _lowering(what) as (saved, context):
        return _lower_together(_with_constants(what, saved), saved, context, directory, look)


def lower_methods(what: Lowering[LowerPlan], directories: dict[str, Path]) -> None:
    """Lowers methods one by one. Several run at the same time, and all use the same imports.

    Each runs in a child process, so that what its code changes in PyTorch reaches nothing else. A single method without
    code of others is lowered in this process, which saves the time for copying pages of memory.

    Args:
        what: The methods. It may contain others.
        directories: The directory for each method, by name. The directories exist and are empty.

    Raises:
        InputError: A declared input is missing or does not fit.
        BuildError: A method cannot be lowered.
    """
    at_once = min(what.effort.jobs, len(directories))
    shown = f"lower {', '.join(directories)}" + (f" ({at_once} at a time)" if at_once > 1 else "")
    with _lowering(what) as (saved, context):
        with what.stage("read the weights"):  # once: the children share the memory
            weights = read_weights(what.plan, saved, what.inputs)
        effort = replace(what.effort, jobs=what.effort.jobs // at_once)
        export = _Export(saved, *weights, replace(context, stage=silent))

        def task(name: str) -> Callable[[], None]:
            def lower_one() -> None:
                with wrap_system_errors():
                    _lower_and_save(what.plan.of_method(name), effort, export, directories[name])

            return lower_one

        with what.stage(shown):
            if len(directories) == 1 and not runs_code_of_others(what.plan, saved):
                task(*directories)()
            else:
                apart.run({f"lowering {name}": task(name) for name in sorted(directories)}, at_once)


def runs_code_of_others(plan: MethodPlan, saved: SavedExport) -> bool:
    """Whether lowering runs code of the user, or of a backend that may do anything."""
    imported = saved.sources or plan.custom_ops.modules or plan.custom_ops.libraries
    return bool(imported) or _looks_at_others(plan) is not None


def lower_method(what: Lowering[MethodPlan], name: str, directory: Path) -> None:
    """Lowers and emits one method by itself.

    Args:
        what: The method. It may contain others; what its plan says about them is not read.
        name: The method's name.
        directory: The directory for the result, in the form that `method_archive` describes. It exists and is empty.

    Raises:
        InputError: A declared input is missing or does not fit.
        BuildError: The method cannot be lowered.
    """
    with _lowering(what) as (saved, context), what.stage(f"lower {name}"):
        export = _Export(saved, *read_weights(what.plan, saved, what.inputs), context)
        _lower_and_save(what.plan.of_method(name), what.effort, export, directory)


@dataclass(frozen=True)
class _Export:
    """An export with its weights: the parameters and buffers by name, and the shard of each parameter with a tag."""

    saved: SavedExport
    content: dict[str, torch.Tensor]
    shards: dict[str, str]
    context: StepContext


def _lower_and_save(part: MethodPlan, effort: Effort, export: _Export, directory: Path) -> None:
    """Lowers and emits the method of a plan, and saves it in an empty directory."""
    from etbuild.emit import adapters, method_archive
    from etbuild.emit.emit_methods import Lowered, emit_methods
    from etbuild.export import custom_ops
    from etbuild.lower.finite_weights import non_finite
    from etbuild.lower.lower_methods import lower_programs

    saved, finder = export.saved, export.context.finder
    (name,) = part.methods
    custom_ops.load(part.custom_ops, export.context)
    with _acceleration(effort, directory):
        programs = load_methods(saved, export.content, [name], finder)
        weights, read = non_finite(programs), adapters.read_by(programs, adapters.names(part, export.shards))
        edge = lower_programs(part, programs, export.shards, finder)
        emitted = emit_methods(part, Lowered(edge, export.shards, weights, saved.written), finder)
        adapters.check_kept(emitted, read)
        # Code of others may have changed a weight in place, so that its content is not that of its file.
        unchanged = export.content if _looks_at_others(part) is None else {}
        method_archive.write(directory, name, emitted, unchanged)


def lower_one_of_several(what: Lowering[MethodPlan], name: str, directory: Path) -> None:
    """Lowers and emits one method of a program with several; or writes the reason why they must be lowered together.

    The arguments and errors are those of `lower_method`.
    """
    reason = _why_together(what.plan, what.export, several=True)
    if reason is None:
        lower_method(what, name, directory)
    else:
        from etbuild.emit import method_archive

        method_archive.write_reason(directory, name, reason)


def merge(what: Lowering[LowerPlan], directories: dict[str, Path], directory: Path) -> list[artifacts.Artifact]:
    """Merges lowered methods into one program, or lowers all from the export if one has to be lowered with the others.

    Args:
        what: The methods.
        directories: The directory that `lower_method` filled, for each method.
        directory: An existing directory for `NAME.pte`, the named data and `NAME.lowering.json`.

    Returns:
        The artifacts, in that order.

    Raises:
        InputError: A declared input is missing or does not fit, or a lowered method is damaged.
        BuildError: The methods do not fit together, or the program cannot be written.
    """
    with _lowering(what) as (saved, context):
        from etbuild.emit import method_archive, mutable_buffers

        what = _with_constants(what, saved)
        methods = {name: method_archive.read(path, name) for name, path in sorted(directories.items())}
        reasons = [f"of `{name}`: {printable(each.why_not)}" for name, each in methods.items() if each.why_not]
        parts: dict[str, Emitted] = {}
        if not reasons:
            with what.stage("merge the methods"):
                needed = frozenset[str]().union(*(method.weights for method in methods.values()))
                content, shards = read_weights(what.plan, saved, what.inputs, needed)
                kept = method_archive.Content(content)
                parts = {name: method_archive.load(method, kept) for name, method in methods.items()}
            reason = mutable_buffers.why_together({name: part.facts[name].buffers for name, part in parts.items()})
            reasons = [reason] if reason is not None else []
        if reasons:
            print(f"note: all methods are lowered together, because {reasons[0]}", file=sys.stderr)
            return _lower_apart(what, saved, context, directory)
        return write_program(what.plan, list(parts.values()), shards, context, directory)


def _with_constants(what: Lowering[LowerPlan], saved: SavedExport) -> Lowering[LowerPlan]:
    """Adds the constants that the export computed. Those of the manifest come first."""
    said = what.plan.constant_methods
    constants = {**said, **{name: value for name, value in saved.constants.items() if name not in said}}
    return replace(what, plan=what.plan.replace(constant_methods=constants))


def imports_of_executorch(effort: Effort) -> list[Callable[[], None]]:
    """What lowering needs of ExecuTorch, as functions that import one part after the other."""

    def decompositions() -> None:  # ExecuTorch imports it in the process of each method
        import torch._functorch.aot_autograd  # noqa: F401

    def exir() -> None:
        import executorch.exir  # noqa: F401

    def driver() -> None:
        from etbuild.emit import method_archive  # noqa: F401
        from etbuild.emit.emit_program import write_program  # noqa: F401
        from etbuild.lower.lower_methods import lower_programs  # noqa: F401

    def importer(part: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            faster = importing() if effort.accelerate else nullcontext()
            with library_messages_off(), stdout_for_results(), frozen_if_first("executorch.exir"), faster:
                part()

        return run

    return [importer(part) for part in (exir, decompositions, driver)]


@contextmanager
def _lowering(what: Lowering[MethodPlan]) -> Iterator[tuple[SavedExport, StepContext]]:
    """Imports what lowering needs, and reads the export."""
    check_installed()
    with opened_export(what) as opened:
        with what.stage("import ExecuTorch"):
            for part in imports_of_executorch(what.effort):
                part()
        yield opened


@contextmanager
def opened_export(what: Lowering[MethodPlan]) -> Iterator[tuple[SavedExport, StepContext]]:
    """Imports PyTorch, and reads the export. Its sources can be imported inside."""
    with library_messages_off(), stdout_for_results():
        releases.check()
        with what.stage("import PyTorch"), frozen_if_first("torch"):
            from etbuild.export import archive
            from etbuild.export.provenance import graphs_numbered
        saved = archive.read(what.export)
        arithmetic.leave_out_other_libraries()
        from etbuild.processes.random_seeds import seed

        seed(0)  # for passes and partitioners that draw random numbers; weights are made by the export
        with importable(read_sources(saved.sources), what.inputs.data.values()) as finder, graphs_numbered():
            finder.lines = what.export.lines
            yield saved, StepContext(what.inputs, finder, what.stage)


@contextmanager
def _acceleration(effort: Effort, directory: Path) -> Iterator[None]:
    """Turns the switches on, if they are wanted. Keeps what backends make from weights below `directory`."""
    if not effort.accelerate or not releases.fitting():
        yield
        return
    from etbuild.accelerate.blobs_in_files import blobs_in_files
    from etbuild.accelerate.preprocess_in_parallel import preprocess_in_parallel
    from etbuild.emit.method_archive import BLOBS

    (directory / BLOBS).mkdir(exist_ok=True)
    with accelerated(), blobs_in_files(directory / BLOBS), preprocess_in_parallel(effort.jobs):
        yield


def _lower_apart(
    what: Lowering[LowerPlan], saved: SavedExport, context: StepContext, directory: Path
) -> list[artifacts.Artifact]:
    """Lowers all methods together, in a child process if code of others runs: nothing that it leaves reaches the
    report."""
    together = functools.partial(_lower_together, what, saved, context, directory)
    if saved.export_plan is None and not runs_code_of_others(what.plan, saved):
        return together()
    return apart.run_one(together)


def _lower_together(
    what: Lowering[LowerPlan],
    saved: SavedExport,
    context: StepContext,
    directory: Path,
    look: Callable[[ExecutorchProgramManager], None] | None = None,
) -> list[artifacts.Artifact]:
    from etbuild.emit import adapters
    from etbuild.emit.emit_methods import Lowered, emit_methods
    from etbuild.export import custom_ops
    from etbuild.lower.finite_weights import non_finite
    from etbuild.lower.lower_methods import lower_programs

    custom_ops.load(what.plan.custom_ops, context)
    if saved.export_plan is None:
        with what.stage("read the export and the weights"):
            content, shards = read_weights(what.plan, saved, what.inputs)
            programs = load_methods(saved, content, what.plan.methods, context.finder)
    else:
        shards, programs = export_with_weights(what.plan, saved.export_plan, context)
    weights, read = non_finite(programs), adapters.read_by(programs, adapters.names(what.plan, shards))
    with artifacts.staging(directory) as scratch, _acceleration(what.effort, scratch):
        with what.stage(f"lower {', '.join(programs)}"):
            edge = lower_programs(what.plan, programs, shards, context.finder, etrecord=look is not None)
        with what.stage("emit"):
            emitted = emit_methods(what.plan, Lowered(edge, shards, weights, None, look), context.finder)
            adapters.check_kept(emitted, read)
        return write_program(what.plan, [emitted], shards, context, directory)


def read_weights(
    lower_plan: MethodPlan, saved: SavedExport, inputs: Inputs, needed: Collection[str] | None = None
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The content of the module's parameters and buffers, and the shards of those that have a tag.

    Args:
        lower_plan: The lower plan.
        saved: The export.
        inputs: The declared inputs.
        needed: The names of the parameters and buffers to read. None: all.
    """
    from etbuild.export import archive
    from etbuild.model import adapter_weights
    from etbuild.model.checkpoint import Checkpoint

    if isinstance(lower_plan, LowerPlan):
        adapter_weights.check(lower_plan.adapters, saved.tensors, inputs)
    shards = _shards(lower_plan, saved.tensors)
    if needed is not None and not needed:
        return {}, shards
    weights = Checkpoint(lower_plan.weights, inputs, saved.tensors, lower_plan.cast).by_name(needed)
    return archive.load_content(saved, weights, needed), shards


def _shards(lower_plan: MethodPlan, facts: list[TensorFacts]) -> dict[str, str]:
    from etbuild.model import weights_files

    return weights_files.shards(lower_plan, facts, weights_files.tags(lower_plan, facts))


def load_methods(
    saved: SavedExport, content: dict[str, torch.Tensor], names: Iterable[str], finder: SourceFinder
) -> dict[str, ExportedProgram]:
    """Reads exported methods, with their weights and the modules that they need. Errors are those of `archive`."""
    from etbuild.export import archive

    _import_modules(saved, finder)
    return archive.load_methods(saved, content, names)


def _import_modules(saved: SavedExport, finder: SourceFinder) -> None:
    """Imports the modules that define the graphs' operators and types that do not belong to PyTorch."""
    from etbuild.inputs.user_code import import_module

    for name in saved.imports:
        import_module(name, finder, ("model", "factory"))


def export_with_weights(
    lower_plan: LowerPlan, export_plan: ExportPlan, context: StepContext
) -> tuple[dict[str, str], dict[str, ExportedProgram]]:
    """The shards and the methods, exported with their weights: the module itself decides how its weights are loaded."""
    from etbuild.model import adapter_weights, weights_files

    with context.stage("create the module"):
        root = create_module(export_plan, context, lower_plan.weights)
        adapter_weights.check(lower_plan.adapters, weights_files.describe(root, False), context.inputs)
    programs = export_methods(export_plan, Modules(root, export_plan, context.finder), context)
    return shards_of(lower_plan, export_plan, root, programs), programs


def shards_of(
    lower_plan: MethodPlan, export_plan: ExportPlan, root: torch.nn.Module, programs: dict[str, ExportedProgram]
) -> dict[str, str]:
    """The shards of the parameters and buffers that have a tag, for methods that were exported with their weights."""
    from etbuild.model import weights_files
    from etbuild.model.method_tensors import carried

    facts = weights_files.describe(root, export_plan.weights)
    if export_plan.carries_content:
        facts = carried(programs, [entry.name for entry in facts]).tensors
    return _shards(lower_plan, facts)


def write_program(
    lower_plan: LowerPlan, parts: Sequence[Emitted], shards: dict[str, str], context: StepContext, directory: Path
) -> list[artifacts.Artifact]:
    """Writes the program of emitted methods, its named data, and the facts of both.

    Args:
        lower_plan: What was lowered, and how.
        parts: The methods, in the order of their names.
        shards: The shard of each parameter that has a tag, by name.
        context: What every step needs.
        directory: An existing directory for the files.

    Returns:
        The artifacts.

    Raises:
        BuildError: The program cannot be written.
    """
    from etbuild.emit import adapters, emit_program
    from etbuild.export.constant_methods import described
    from etbuild.lower.finite_weights import counted
    from etbuild.model import adapter_weights

    with context.stage("write the program"):
        weights = adapter_weights.read(lower_plan.adapters, adapters.names(lower_plan, shards), context.inputs)
        parts = adapters.filled(parts, weights)
        emission = emit_program.write_program(lower_plan, parts, shards, context.finder, directory)
        methods = {name: of_method for part in parts for name, of_method in sorted(part.facts.items())}
        facts: LoweringFacts = {
            "schema": LOWERING_SCHEMA,
            "artifacts": [artifact.facts() for artifact in emission.artifacts],
            "program": emission.program,
            "operators": {name: of_method.operators for name, of_method in methods.items()},
            "graphs": {name: of_method.graph for name, of_method in methods.items()},
            "instructions": {name: of_method.instructions for name, of_method in methods.items()},
            "memory": emission.memory,
            "named_data": emission.named_data,
            "sharing": weight_sharing.measure({name: of_method.places for name, of_method in methods.items()}),
            "non_finite": {
                **{name: found for part in parts for name, found in part.non_finite.items()},
                **counted(weights),
            },
            "runtime_limits": emission.limits,
            "constant_methods": {name: described(value) for name, value in lower_plan.constant_methods.items()},
            **_describe_weights(lower_plan, context.inputs),
        }
        written = write_json(directory, lower_plan.name, "lowering", facts)
    return [*emission.artifacts, written]


def _describe_weights(lower_plan: LowerPlan, inputs: Inputs) -> WeightDigests:
    from etbuild.inputs.checkpoints import with_shards
    from etbuild.model.tensor_digests import tensors_of_files

    names = with_shards(lower_plan.weights_names, inputs)
    found = {name: inputs.find_data(name, path) for name, path in names.items()}
    return {"data": {name: file_digest(file) for name, file in found.items()}, "tensors": tensors_of_files(found)}
