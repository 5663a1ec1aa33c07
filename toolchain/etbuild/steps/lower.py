"""Lowering: the methods become one program. They are lowered one by one if that gives the same result."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
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
from etbuild.lower.weight_sharing import Places
from etbuild.plan.plan import ExportPlan, LowerPlan, MethodPlan, weights_names
from etbuild.processes import forked
from etbuild.processes.library_output import library_messages_off, stdout_for_results
from etbuild.results import LoweringFacts, WeightDigests
from etbuild.steps.export import Modules, create_module, export_methods
from etbuild.steps.report import LOWERING_SCHEMA, write_json
from etbuild.steps.resources import Effort
from etbuild.steps.stages import frozen_if_first

if TYPE_CHECKING:
    import torch
    from executorch.exir import EdgeProgramManager
    from torch.export import ExportedProgram

    from etbuild.export.archive import SavedExport
    from etbuild.lower.finite_weights import NonFinite
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


@dataclass(frozen=True)
class Lowered:
    """All methods, lowered.

    Attributes:
        edge: The methods.
        shards: The shard of each parameter that has a tag, by name.
        places: Where the weights of each method are stored.
        non_finite: The weights with elements that are NaN or infinite.
    """

    edge: EdgeProgramManager
    shards: dict[str, str]
    places: Places
    non_finite: NonFinite


def separable(lower_plan: MethodPlan, export: ExportFiles) -> bool:
    """Whether there are several methods, and lowering them one by one gives the same program."""
    return len(lower_plan.methods) > 1 and _why_together(lower_plan, export) is None


def _why_together(lower_plan: MethodPlan, export: ExportFiles) -> str | None:
    """The reason why methods must be lowered together; None if no reason is known before they are lowered."""
    if export.together:
        return "its export has no methods without their weights"
    if not backends.separable(lower_plan.backends):
        return "one of its backends may look at several methods"
    if lower_plan.recipe is not None:
        return "its recipe may look at several methods"
    if lower_plan.passes.edge or lower_plan.passes.edge_manager:
        return "its passes may look at several methods"
    if not lower_plan.has_default_edge_compile:
        return "its `edge_compile` is not ExecuTorch's own"
    return None if releases.fitting() else "this version of torch or ExecuTorch is not known"


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
    if what.effort.accelerate and what.effort.jobs > 1 and separable(what.plan, what.export):
        with artifacts.staging(directory) as staged:
            methods = {name: staged / name for name in what.plan.methods}
            for path in methods.values():
                path.mkdir()
            lower_methods(what, methods)
            return merge(what, methods, directory)
    with _lowering_with_operators(what) as (saved, context):
        return _lower_together(_with_constants(what, saved), saved, context, directory)


def lower_methods(what: Lowering[LowerPlan], directories: dict[str, Path]) -> None:
    """Lowers methods one by one, each in a child process. Several run at the same time, and all use the same imports.

    Args:
        what: The methods. It may contain others.
        directories: The directory for each method, by name. The directories exist and are empty.

    Raises:
        InputError: A declared input is missing or does not fit.
        BuildError: A method cannot be lowered.
    """
    at_once = min(what.effort.jobs, len(directories))
    each = replace(what, stage=silent, effort=replace(what.effort, jobs=what.effort.jobs // at_once))

    def task(name: str) -> Callable[[], None]:
        def run() -> None:
            import torch

            torch.set_num_threads(1)  # the threads of a pool from before the fork do not exist here
            with wrap_system_errors():
                lower_method(each, name, directories[name])

        return run

    shown = f"lower {', '.join(directories)}" + (f" ({at_once} at a time)" if at_once > 1 else "")
    with _lowering(what), what.stage(shown):
        forked.run({f"lowering {name}": task(name) for name in sorted(directories)}, at_once)


def lower_method(what: Lowering[MethodPlan], name: str, directory: Path) -> None:
    """Lowers one method by itself.

    Args:
        what: The method. It may contain others; what its plan says about them is not read.
        name: The method's name.
        directory: The directory for the result, in the form that `method_archive` describes. It exists and is empty. If
            the method has to be lowered with the others, the reason is written there.

    Raises:
        InputError: A declared input is missing or does not fit.
        BuildError: The method cannot be lowered.
    """
    with _lowering_with_operators(what) as (saved, context):
        from etbuild.lower import method_archive, named_data
        from etbuild.lower.finite_weights import non_finite
        from etbuild.lower.lower_methods import lower_programs

        part = what.plan.of_method(name)
        try:
            reason = _why_together(part, what.export)
            if reason is not None:
                raise method_archive.CannotSave(reason)
            with _acceleration(what.effort, directory), what.stage(f"lower {name}"):
                content, shards = _read_weights(part, saved, what.inputs)
                programs = _load(saved, content, [name], context.finder)
                method_archive.check(programs[name])
                weights = non_finite(programs)
                edge = lower_programs(part, programs, shards, context.finder)
                claims = named_data.claims(edge, shards)
                places = weight_places_of(edge, part)[name]
                facts = method_archive.Facts(claims, places, weights)
                method_archive.write(directory, name, edge.exported_program(name), facts, content)
        except method_archive.CannotSave as error:
            method_archive.write_reason(directory, name, str(error))


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
    with _lowering_with_operators(what) as (saved, context):
        from etbuild.lower import method_archive

        what = _with_constants(what, saved)
        methods = {name: method_archive.read(path, name) for name, path in directories.items()}
        for name, method in methods.items():
            if method.why_not is not None:
                why_not = printable(method.why_not)
                print(f"note: all methods are lowered together, because of `{name}`: {why_not}", file=sys.stderr)
                return _lower_together(what, saved, context, directory)
        with accelerated() if what.effort.accelerate else nullcontext():
            with what.stage("merge the methods"):
                _import_modules(saved, context.finder)
                content, shards = _read_weights(what.plan, saved, what.inputs)
                edge = method_archive.merge(methods, content, shards, what.plan.constant_methods)
            weights = {weight: counted for method in methods.values() for weight, counted in method.non_finite.items()}
            lowered = Lowered(edge, shards, {name: method.places for name, method in methods.items()}, weights)
            return emit_program(what.plan, lowered, context, directory)


def _with_constants(what: Lowering[LowerPlan], saved: SavedExport) -> Lowering[LowerPlan]:
    """Adds the constants that the export computed. Those of the manifest come first."""
    said = what.plan.constant_methods
    constants = {**said, **{name: value for name, value in saved.constants.items() if name not in said}}
    return replace(what, plan=what.plan.replace(constant_methods=constants))


@contextmanager
def _lowering(what: Lowering[MethodPlan]) -> Iterator[tuple[SavedExport, StepContext]]:
    """Imports what lowering needs, and reads the export."""
    check_installed()
    with library_messages_off(), stdout_for_results():
        releases.check()
        with what.stage("import PyTorch"), frozen_if_first("torch"):
            from etbuild.export import archive
        saved = archive.read(what.export)
        faster = importing() if what.effort.accelerate else nullcontext()
        with what.stage("import ExecuTorch"), frozen_if_first("executorch.exir"), faster:
            from etbuild.emit.emit_program import emit  # noqa: F401
            from etbuild.lower import method_archive  # noqa: F401
            from etbuild.lower.lower_methods import lower_programs  # noqa: F401
            from etbuild.processes.random_seeds import seed
        seed(0)  # for passes and partitioners that draw random numbers; weights are made by the export
        with importable(read_sources(saved.sources), what.inputs.data.values()) as finder:
            finder.lines = what.export.lines
            yield saved, StepContext(what.inputs, finder, what.stage)


@contextmanager
def _lowering_with_operators(what: Lowering[MethodPlan]) -> Iterator[tuple[SavedExport, StepContext]]:
    """Does what `_lowering` does, and loads the operators that do not belong to PyTorch."""
    with _lowering(what) as (saved, context):
        from etbuild.export import custom_ops

        custom_ops.load(what.plan.custom_ops, context)
        yield saved, context


@contextmanager
def _acceleration(effort: Effort, directory: Path) -> Iterator[None]:
    """Turns the switches on, if they are wanted. Keeps what backends make from weights below `directory`."""
    if not effort.accelerate or not releases.fitting():
        yield
        return
    from etbuild.accelerate.blobs_in_files import blobs_in_files
    from etbuild.accelerate.preprocess_in_parallel import preprocess_in_parallel
    from etbuild.lower.method_archive import BLOBS

    (directory / BLOBS).mkdir(exist_ok=True)
    with accelerated(), blobs_in_files(directory / BLOBS), preprocess_in_parallel(effort.jobs):
        yield


def _lower_together(
    what: Lowering[LowerPlan], saved: SavedExport, context: StepContext, directory: Path
) -> list[artifacts.Artifact]:
    from etbuild.lower import named_data
    from etbuild.lower.finite_weights import non_finite
    from etbuild.lower.lower_methods import lower_programs

    if saved.export_plan is None:
        with what.stage("read the export and the weights"):
            content, shards = _read_weights(what.plan, saved, what.inputs)
            programs = _load(saved, content, what.plan.methods, context.finder)
    else:
        shards, programs = _export_with_weights(what.plan, saved.export_plan, context)
    weights = non_finite(programs)
    with artifacts.staging(directory) as scratch, _acceleration(what.effort, scratch):
        with what.stage(f"lower {', '.join(programs)}"):
            edge = lower_programs(what.plan, programs, shards, context.finder)
            named_data.arrange(edge, named_data.claims(edge, shards))
        with what.stage("look for weights that are there twice"):
            lowered = Lowered(edge, shards, weight_places_of(edge, what.plan), weights)
        return emit_program(what.plan, lowered, context, directory)


def weight_places_of(edge: EdgeProgramManager, lower_plan: MethodPlan) -> Places:
    """Where the weights of each lowered method are stored."""
    from etbuild.lower.weight_storage import Digests, weight_places

    digests, named = Digests(), lower_plan.backends
    return {name: weight_places(edge.exported_program(name), digests, named) for name in sorted(edge.methods)}


def _read_weights(
    lower_plan: MethodPlan, saved: SavedExport, inputs: Inputs
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The content of the module's parameters and buffers, and the shards of those that have a tag."""
    from etbuild.export import archive
    from etbuild.model.checkpoint import Checkpoint

    weights = Checkpoint(lower_plan.weights, inputs, saved.tensors, lower_plan.cast).by_name()
    return archive.load_content(saved, weights), _shards(lower_plan, saved.tensors)


def _shards(lower_plan: MethodPlan, facts: list[TensorFacts]) -> dict[str, str]:
    from etbuild.model import weights_files

    return weights_files.shards(lower_plan, facts, weights_files.tags(lower_plan, facts))


def _load(
    saved: SavedExport, content: dict[str, torch.Tensor], names: Iterable[str], finder: SourceFinder
) -> dict[str, ExportedProgram]:
    from etbuild.export import archive

    _import_modules(saved, finder)
    return archive.load_methods(saved, content, names)


def _import_modules(saved: SavedExport, finder: SourceFinder) -> None:
    """Imports the modules that define the graphs' operators and types that do not belong to PyTorch."""
    from etbuild.inputs.user_code import import_module

    for name in saved.imports:
        import_module(name, finder, ("model", "factory"))


def _export_with_weights(
    lower_plan: LowerPlan, export_plan: ExportPlan, context: StepContext
) -> tuple[dict[str, str], dict[str, ExportedProgram]]:
    """The shards and the methods, exported with their weights: the module itself decides how its weights are loaded."""
    with context.stage("create the module"):
        root = create_module(export_plan, context, lower_plan.weights)
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


def emit_program(
    lower_plan: LowerPlan, lowered: Lowered, context: StepContext, directory: Path
) -> list[artifacts.Artifact]:
    """Makes the program of lowered methods and its named data, and writes the facts of both.

    Args:
        lower_plan: What was lowered, and how.
        lowered: The methods.
        context: What every step needs.
        directory: An existing directory for the files.

    Returns:
        The artifacts.

    Raises:
        BuildError: The program cannot be written.
    """
    from etbuild.emit.emit_program import emit
    from etbuild.export.constant_methods import described
    from etbuild.lower.lower_methods import operator_counts

    with context.stage("emit"):
        operators = operator_counts(lowered.edge)
        emission = emit(lower_plan, lowered.edge, lowered.shards, context.finder, directory)
        facts: LoweringFacts = {
            "schema": LOWERING_SCHEMA,
            "artifacts": [artifact.facts() for artifact in emission.artifacts],
            "program": emission.program,
            "operators": operators,
            "named_data": emission.named_data,
            "sharing": weight_sharing.measure(lowered.places),
            "non_finite": lowered.non_finite,
            "runtime_limits": [limit.facts() for limit in emission.limits],
            "constant_methods": {name: described(value) for name, value in lower_plan.constant_methods.items()},
            **_describe_weights(lower_plan, context.inputs),
        }
        return [*emission.artifacts, write_json(directory, lower_plan.name, "lowering", facts)]


def _describe_weights(lower_plan: LowerPlan, inputs: Inputs) -> WeightDigests:
    from etbuild.inputs.checkpoints import with_shards
    from etbuild.model.tensor_digests import tensors_of_files

    names = with_shards(weights_names(lower_plan.weights), inputs)
    found = {name: inputs.find_data(name, path) for name, path in names.items()}
    return {"data": {name: file_digest(file) for name, file in found.items()}, "tensors": tensors_of_files(found)}
