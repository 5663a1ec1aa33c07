"""Lowering: the methods become one program. They are lowered one by one if that gives the same result."""

from __future__ import annotations

import functools
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from etbuild import backends, notes, switches
from etbuild.errors import InputError
from etbuild.files.writing import Artifact
from etbuild.foreign_errors import wrap_system_errors
from etbuild.guard import children
from etbuild.inputs.checkpoints import with_shards
from etbuild.inputs.step_context import StepContext, silent
from etbuild.key.toolchain import check_installed
from etbuild.lower import weight_sharing
from etbuild.plan.step_plans import LowerPlan, MethodPlan, weights_names
from etbuild.results import LoweringFacts, NonFiniteWeight
from etbuild.steps.executorch_imports import imports_of_executorch
from etbuild.steps.facts import LOWERING_SCHEMA, write_json
from etbuild.steps.lowering_options import LoweringOptions
from etbuild.steps.lowering_weights import (
    check_of_adapters,
    described_weights,
    exported_with_weights,
    with_adapters,
    without_content,
)
from etbuild.steps.method_store import MethodStore, write_names
from etbuild.steps.saved_export import (
    LoweringJob,
    joint_lowering_reason,
    load_custom_ops,
    load_methods,
    needs_weights,
    open_content,
    opened_export,
    runs_code_of_others,
)

if TYPE_CHECKING:
    import torch
    from executorch.exir import ExecutorchProgramManager

    from etbuild.emit.emit_methods import Emitted
    from etbuild.emit.method_archive import SavedMethod
    from etbuild.export.read_archive import SavedExport


def lower(
    job: LoweringJob[LowerPlan],
    directory: Path,
    store: MethodStore,
    on_emitted: Callable[[ExecutorchProgramManager], None] | None = None,
) -> list[Artifact]:
    """Lowers the methods of an export to one program, with their weights.

    If that gives the same program, the methods are lowered one by one.

    Args:
        job: The methods.
        directory: An existing directory for `NAME.pte`, the named data and `NAME.lowering.json`.
        store: Has some of the methods, and keeps the others. Its directory also takes temporary files.
        on_emitted: Gets ExecuTorch's output, which has an ETRecord. All methods are then lowered together.

    Returns:
        The artifacts, in that order.

    Raises:
        InputError: A declared input is missing or does not fit.
        BuildError: The methods cannot be lowered, or the program cannot be written.
    """
    several = len(job.plan.methods) > 1
    one_by_one = job.options.accelerate and on_emitted is None
    reason = joint_lowering_reason(job.plan, job.export, several=several)
    if one_by_one and reason is None:
        return merge(job, _lower_one_by_one(job, store), directory, store)
    with _opened(job) as (saved, context):
        job = _with_constants(job, saved)
        if on_emitted is not None:
            return _lower_together(job, saved, context, directory, store, on_emitted, reason)
        return _lower_in_child(job, saved, context, directory, store, reason)


def _lower_one_by_one(job: LoweringJob[MethodPlan], store: MethodStore) -> dict[str, Path]:
    """Lowers the methods that a store does not have, without the content of weights.

    Returns:
        The directories of all methods except those that need the content of weights.
    """
    names = [name for name in job.plan.methods if not needs_weights(job.plan.of_method(name))]
    directories, missing = store.directories(names, weights=False)
    if missing:
        with store.keep(missing, weights=False), _opened(job) as opened:
            _lower_methods(job, missing, opened)
    return directories


Opened = tuple["SavedExport", StepContext]


def _lower_methods(
    job: LoweringJob[MethodPlan], directories: dict[str, Path], opened: Opened, with_weights: str = ""
) -> None:
    """Lowers methods into empty directories. Several run at the same time, and all use the same imports.

    Each runs in a child process, so that changes of its code in PyTorch affect nothing else. A single method without
    other people's code is lowered in this process, which saves the time for copying pages of memory.

    Args:
        job: The methods. It may have more of them.
        directories: The directories.
        opened: What `_opened` returns.
        with_weights: The reason for lowering with the content of weights, for users; empty to lower without it.
    """
    at_once = min(job.options.jobs, len(directories))
    shown = f"lower {', '.join(directories)}{with_weights and f' with the weights, because {with_weights}'}"
    shown += f" ({at_once} at a time)" if at_once > 1 else ""
    saved, context = opened
    export = _export(job, opened, weights=bool(with_weights))  # read once, because the children share the memory
    options = replace(job.options, jobs=job.options.jobs // at_once)
    silently = replace(export, context=replace(context, stage=silent))

    def task(name: str) -> Callable[[], None]:
        def lower_one() -> None:
            with wrap_system_errors():
                _lower_and_save(job.plan.of_method(name), options, silently, directories[name])

        return lower_one

    with job.stage(shown):
        if len(directories) == 1 and not runs_code_of_others(job.plan, saved):
            task(*directories)()
        else:
            children.run({f"lowering {name}": task(name) for name in sorted(directories)}, at_once)


def lower_templates(job: LoweringJob[MethodPlan], directory: Path, *, weights: bool) -> list[Path]:
    """Lowers each method by itself without the content of weights, if possible.

    Args:
        job: The methods.
        directory: An existing empty directory, for `LoweredBefore`.
        weights: Whether to lower the others too, with the content of weights. If not, no weights file is needed.

    Returns:
        The files of weights if their content cannot change the result; otherwise none.

    Raises:
        InputError: A declared input is missing or does not fit.
        BuildError: A method cannot be lowered.
    """
    write_names(directory, job.plan)
    store, unfit = MethodStore(directory), dict[str, str]()
    if joint_lowering_reason(job.plan, job.export, several=True) is None:
        directories = _lower_one_by_one(job, store)
        if weights:
            with _opened(job) as opened:
                unfit = _unfit(job.plan, _read(directories))
                _lowered_with_weights(job, unfit, opened, store)
    with suppress(InputError):  # without `weights`, the files are seldom declared
        files = map(job.inputs.find, with_shards(weights_names(job.plan.weights), job.inputs))
        return [] if unfit else [path for path in files if path is not None]
    return []


@dataclass(frozen=True)
class _Export:
    """An export with its weights: the parameters and buffers by name, and the shard of each parameter with a tag."""

    saved: SavedExport
    content: dict[str, torch.Tensor]
    shards: dict[str, str]
    context: StepContext
    weights: bool
    """Whether the weights have their content."""


def _export(job: LoweringJob[MethodPlan], opened: Opened, *, weights: bool) -> _Export:
    from etbuild.lower import shards

    saved, context = opened
    shard_of = shards.of_tensors(job.plan, saved.tensors)
    if not weights:
        return _Export(saved, without_content(job.plan, saved, shard_of), shard_of, context, weights)
    with job.stage("read the weights"):
        return _Export(saved, open_content(job, saved).loaded(), shard_of, context, weights)


def _lower_and_save(part: MethodPlan, options: LoweringOptions, export: _Export, directory: Path) -> None:
    """Lowers and emits the method of a plan, and saves it in an empty directory."""
    from etbuild.emit import method_archive

    (name,) = part.methods
    if export.weights:
        load_custom_ops(part, export.context)
        with _acceleration(options, directory):
            method_archive.write(directory, name, _emitted(part, export)[0])
    elif reasons := _why_weights(part, options, export, directory):
        method_archive.write_why_weights(directory, name, reasons)


def _why_weights(part: MethodPlan, options: LoweringOptions, export: _Export, directory: Path) -> list[str]:
    """Lowers and emits the method of a plan without the content of weights, and saves it in an empty directory.

    Returns:
        For users: what read the content of weights. Then nothing is saved, and the method needs that content.
    """
    from etbuild.emit import method_archive
    from etbuild.lower import unbound

    (name,) = part.methods
    load_custom_ops(part, export.context)
    with unbound.watched(backends.weight_functions(part.backends)) as watch, _acceleration(options, None, watch):
        try:
            emitted, kinds = _emitted(part, export)
            if not watch.reads:
                template = method_archive.Template(kinds, watch.recipes, watch.checks)
                method_archive.write(directory, name, emitted, template)
        except (MemoryError, OSError):
            raise
        except (Exception, unbound.ReadsWeights) as error:  # noqa: BLE001 - operators raise anything
            # The error may come from tensors without content. If not, lowering with their content raises it again.
            shutil.rmtree(directory / method_archive.BLOBS, ignore_errors=True)
            return watch.reads or [f"lowering without their content fails with {type(error).__name__}"]
    return watch.reads


def _emitted(part: MethodPlan, export: _Export) -> tuple[Emitted, dict[str, str]]:
    """A lowered and emitted method, and its weights, as `finite_weights.kinds` returns them."""
    from etbuild.emit.emit_methods import Lowered, emit_methods
    from etbuild.lower import finite_weights
    from etbuild.lower.lower_methods import lower_programs

    saved = export.saved
    programs = load_methods(saved, export.content, part.methods)
    kinds = finite_weights.kinds(programs)
    weights = finite_weights.counted(export.content, kinds)
    check = check_of_adapters(part, programs, export.shards)
    edge = lower_programs(part, programs, export.shards)
    emitted = emit_methods(part, Lowered(edge, export.shards, weights, saved.written))
    check(emitted)
    return emitted, kinds


def merge(
    job: LoweringJob[LowerPlan], directories: dict[str, Path], directory: Path, store: MethodStore
) -> list[Artifact]:
    """Binds lowered methods to the content of weights, and merges them into one program.

    If the methods depend on each other after all, lowers all methods together.

    Args:
        job: The methods.
        directories: The directory of each method that was lowered without the content of weights. The other methods are
            lowered here, with the content.
        directory: An existing directory for `NAME.pte`, the named data and `NAME.lowering.json`.
        store: Has some of the methods that must be lowered with the content of weights, and keeps the others.

    Returns:
        The artifacts, in that order.

    Raises:
        InputError: A declared input is missing or does not fit, or a lowered method is damaged.
        BuildError: The methods do not fit together, or the program cannot be written.
    """
    with _opened(job) as opened:
        from etbuild.emit import mutable_buffers
        from etbuild.lower import shards

        saved, context = opened
        job = _with_constants(job, saved)
        shard_of = shards.of_tensors(job.plan, saved.tensors)
        parts, reasons = _bound(job, opened, _read(directories), store)
        buffers = {name: part.facts[name].buffers for name, part in parts.items()}
        reason = mutable_buffers.joint_lowering_reason(buffers)
        if reason is not None:
            print(f"note: all methods are lowered together, because {reason}", file=sys.stderr)
            return _lower_in_child(job, saved, context, directory, store, reason)
        return write_program(job.plan, list(parts.values()), shard_of, context, directory, reasons, job.export.notes)


def _read(directories: Mapping[str, Path]) -> dict[str, SavedMethod]:
    from etbuild.emit import method_archive

    return {name: method_archive.read(path, name) for name, path in sorted(directories.items())}


def _unfit(plan: MethodPlan, templates: Mapping[str, SavedMethod]) -> dict[str, str]:
    """The methods that must be lowered with the content of weights, and why, for users."""
    unfit = {name: needs_weights(plan.of_method(name)) or "" for name in plan.methods if name not in templates}
    return unfit | {name: each.why_weights[0] for name, each in templates.items() if each.why_weights}


def _bound(
    job: LoweringJob[LowerPlan], opened: Opened, templates: Mapping[str, SavedMethod], store: MethodStore
) -> tuple[dict[str, Emitted], dict[str, str]]:
    """Methods with the content of weights, in the order of their names; and why some were lowered with it."""
    from etbuild.emit import method_archive
    from etbuild.emit.binding import Binding, CannotBind
    from etbuild.lower import finite_weights
    from etbuild.lower.recipes import Ingredients

    reasons = _unfit(job.plan, templates)
    methods = {**templates, **_lowered_with_weights(job, reasons, opened, store)}
    with job.stage("read the weights"):
        needed = frozenset[str]().union(*(method.weights for method in methods.values()))
        content = open_content(job, opened[0], needed)
    functions = backends.weight_functions(job.plan.backends)
    calls = {name: getattr(each.owner, each.attribute) for name, each in functions.items()}
    (made := store.directory / ".made").mkdir()  # not the name of a method
    binding = Binding(Ingredients(content, calls), job.options.jobs, made)
    parts = {}
    kinds = {name: kind for _, method in sorted(methods.items(), reverse=True) for name, kind in method.kinds.items()}
    non_finite = finite_weights.counted(content, kinds)  # once for all methods, because it reads the weights
    for name, method in sorted(methods.items()):
        try:
            with job.stage(f"bind {name}") if method.weights else nullcontext():
                parts[name] = _with_non_finite(method_archive.load(method, binding), method.kinds, non_finite)
        except CannotBind as error:
            reasons[name] = str(error)
            lowered = _lowered_with_weights(job, {name: reasons[name]}, opened, store)
            parts[name] = method_archive.load(lowered[name], binding)
    return parts, reasons


def _with_non_finite(emitted: Emitted, weights: Collection[str], non_finite: Mapping[str, NonFiniteWeight]) -> Emitted:
    found = {name: each for name, each in non_finite.items() if name in weights}
    return replace(emitted, non_finite={**emitted.non_finite, **found})


def _lowered_with_weights(
    job: LoweringJob[MethodPlan], reasons: Mapping[str, str], opened: Opened, store: MethodStore
) -> dict[str, SavedMethod]:
    """Lowers methods with the content of weights, except those that a store has.

    Args:
        job: The methods. It may have more of them.
        reasons: Why each of them is lowered in this way, for users.
        opened: What `_opened` returns.
        store: The store.
    """
    directories, missing = store.directories(reasons, weights=True)
    if missing:
        with store.keep(missing, weights=True):
            _lower_methods(job, missing, opened, next(reasons[name] for name in missing))
    return _read(directories)


def _with_constants(job: LoweringJob[LowerPlan], saved: SavedExport) -> LoweringJob[LowerPlan]:
    """Adds the constants that the export computed. Those of the manifest come first."""
    said = job.plan.constant_methods
    constants = {**said, **{name: value for name, value in saved.constants.items() if name not in said}}
    return replace(job, plan=job.plan.replace(constant_methods=constants))


@contextmanager
def _opened(job: LoweringJob[MethodPlan]) -> Iterator[tuple[SavedExport, StepContext]]:
    """Imports what lowering needs, and reads the export."""
    check_installed()
    with opened_export(job) as opened:
        with job.stage("import ExecuTorch"):
            for part in imports_of_executorch(job.options):
                part()
        yield opened


def _acceleration(
    options: LoweringOptions, directory: Path | None, notes: switches.Notes | None = None
) -> AbstractContextManager[None]:
    """Turns the switches on if the options ask for it. Keeps backends' results from weights below `directory`, if
    given."""
    from etbuild.emit.method_archive import BLOBS

    if not options.accelerate:
        return nullcontext()
    return switches.lowering(None if directory is None else directory / BLOBS, options.jobs, notes)


def _lower_in_child(
    job: LoweringJob[LowerPlan],
    saved: SavedExport,
    context: StepContext,
    directory: Path,
    store: MethodStore,
    reason: str | None,
) -> list[Artifact]:
    """Lowers all methods together: in a child process if other people's code runs, so that nothing it changes reaches
    the report. `reason` is why the methods must be lowered together, if they must."""
    together = functools.partial(_lower_together, job, saved, context, directory, store, reason=reason)
    if saved.export_plan is None and not runs_code_of_others(job.plan, saved):
        return together()
    return children.run_one(together)


def _lower_together(
    job: LoweringJob[LowerPlan],
    saved: SavedExport,
    context: StepContext,
    directory: Path,
    store: MethodStore,
    on_emitted: Callable[[ExecutorchProgramManager], None] | None = None,
    reason: str | None = None,
) -> list[Artifact]:
    from etbuild.emit.emit_methods import Lowered, emit_methods
    from etbuild.lower import shards
    from etbuild.lower.finite_weights import non_finite
    from etbuild.lower.lower_methods import lower_programs

    load_custom_ops(job.plan, context)
    if saved.export_plan is None:
        with (
            job.stage("read the export and the weights"),
            switches.lowering() if job.options.accelerate else nullcontext(),
        ):
            shard_of, said = shards.of_tensors(job.plan, saved.tensors), list[str]()
            programs = load_methods(saved, open_content(job, saved).loaded(), job.plan.methods)
    else:
        with notes.collected() as said:
            shard_of, programs = exported_with_weights(job.plan, saved.export_plan, context)
    weights, check = non_finite(programs), check_of_adapters(job.plan, programs, shard_of)
    # Names of methods do not begin with a point.
    with TemporaryDirectory(prefix=".", dir=store.directory) as scratch, _acceleration(job.options, Path(scratch)):
        with job.stage(f"lower {', '.join(programs)}"):
            edge = lower_programs(job.plan, programs, shard_of, etrecord=on_emitted is not None)
        with job.stage("emit"):
            emitted = emit_methods(job.plan, Lowered(edge, shard_of, weights, None, on_emitted))
            check(emitted)
        # The same as for methods that are lowered one by one, as far as it is known before.
        known = {name: reason or needs_weights(job.plan.of_method(name)) for name in job.plan.methods}
        reasons = {name: why for name, why in known.items() if why is not None}
        of_export = [*dict.fromkeys([*job.export.notes, *said])]
        return write_program(job.plan, [emitted], shard_of, context, directory, reasons, of_export)


def write_program(
    lower_plan: LowerPlan,
    parts: Sequence[Emitted],
    shard_of: dict[str, str],
    context: StepContext,
    directory: Path,
    reasons: Mapping[str, str],
    of_export: Sequence[str] = (),
) -> list[Artifact]:
    """Writes the program of emitted methods, its named data, and the facts of both.

    Args:
        lower_plan: What was lowered, and how.
        parts: The methods, in the order of their names.
        shard_of: The shard of each parameter that has a tag, by name.
        context: What every step needs.
        directory: An existing directory for the files.
        reasons: Why methods were lowered with the content of weights, by method, for users.
        of_export: The notes of the export.

    Returns:
        The artifacts.

    Raises:
        BuildError: The program cannot be written.
    """
    from etbuild.emit import emit_program
    from etbuild.lower.finite_weights import counted

    with context.stage("write the program"):
        parts, weights = with_adapters(lower_plan, parts, shard_of, context.inputs)
        emission = emit_program.write_program(lower_plan, parts, shard_of, directory)
        methods = {name: of_method for part in parts for name, of_method in sorted(part.facts.items())}
        readers = {name: of_method.readers for name, of_method in methods.items()}
        keys = [
            *emission.program["bytes"]["named_data"],
            *(key for of_tag in emission.named_data.values() for key in of_tag),
        ]
        facts: LoweringFacts = {
            "schema": LOWERING_SCHEMA,
            "artifacts": [artifact.facts() for artifact in emission.artifacts],
            "program": emission.program,
            "template": emission.template,
            "with_weights": dict(sorted(reasons.items())),
            "operators": {name: of_method.operators for name, of_method in methods.items()},
            "graphs": {name: of_method.graph for name, of_method in methods.items()},
            "instructions": {name: of_method.instructions for name, of_method in methods.items()},
            "notes": [*of_export, *(note for of_method in methods.values() for note in of_method.notes)],
            "memory": emission.memory,
            "named_data": emission.named_data,
            "blob_weights": weight_sharing.blob_weights(readers, emission.constants, keys),
            "sharing": weight_sharing.measure(readers),
            "non_finite": {
                **{name: found for part in parts for name, found in part.non_finite.items()},
                **counted(weights),
            },
            "runtime_limits": emission.limits,
            "constant_methods": {name: _described(value) for name, value in lower_plan.constant_methods.items()},
            **described_weights(lower_plan, context.inputs),
        }
        written = write_json(directory, lower_plan.name, "lowering", facts)
    return [*emission.artifacts, written]


def _described(value: Any) -> Any:
    """A constant as JSON data. A tensor is described by its dtype and shape."""
    import torch

    from etbuild.model.tensor_bytes import dtype_name

    if not isinstance(value, torch.Tensor):
        return value
    return {"dtype": dtype_name(value.dtype), "shape": list(value.shape)}
