"""Lowers methods one by one, and merges them into one program: what `etbuild.steps` calls `OneByOne`.

A method is lowered without the content of weights, as far as that is possible. Then `binding` gives it the content.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild import backends
from etbuild.errors import InputError
from etbuild.files.copying import at_once
from etbuild.files.writing import Artifact
from etbuild.foreign_errors import wrap_system_errors
from etbuild.guard import children
from etbuild.inputs.checkpoints import with_shards
from etbuild.inputs.step_context import StepContext, silent
from etbuild.plan.step_plans import LowerPlan, MethodPlan, weights_names
from etbuild.results import NonFiniteWeight
from etbuild.steps.lower import Lowering, Opened, acceleration, import_executorch, opened, write_program
from etbuild.steps.lowering_options import LoweringOptions
from etbuild.steps.lowering_weights import check_of_adapters
from etbuild.steps.one_by_one import KeptMethods
from etbuild.steps.saved_export import (
    LoweringJob,
    joint_lowering_reason,
    load_custom_ops,
    load_methods,
    needs_weights,
    open_content,
    runs_code_of_others,
)
from etplugins.templates.method_store import LoweredBefore, MethodStore, places_of, write_names

if TYPE_CHECKING:
    import torch

    from etbuild.emit.emitted import Emitted
    from etbuild.emit.shared_buffers import Buffers
    from etbuild.export.read_archive import SavedExport
    from etplugins.templates.method_archive import SavedMethod


def import_all(*, lowers: bool) -> None:
    """See `OneByOne.import_all`."""
    from etplugins.templates import method_archive  # noqa: F401

    if lowers:
        from etplugins.templates import unbound  # noqa: F401


def lower(lowering: Lowering, kept: KeptMethods) -> list[Artifact]:
    """See `OneByOne.lower`."""
    store = MethodStore(lowering.scratch, kept)
    return _merge(lowering, lower_without_weights(lowering.job, store), store)


def merge(lowering: Lowering, lowered: Sequence[Path]) -> list[Artifact]:
    """See `OneByOne.merge`."""
    store = LoweredBefore(lowering.scratch, lowered)
    store.check(lowering.job.plan)
    if lowering.may_be_split:
        return _merge(lowering, lower_without_weights(lowering.job, store), store)
    with opened(lowering.job) as found:
        return lowering.together(found, lowering.joint_reason)


def templates(job: LoweringJob[MethodPlan], directory: Path, *, weights: bool) -> list[Path]:
    """See `OneByOne.templates`."""
    write_names(directory, job.plan)
    store, unfit = MethodStore(directory), dict[str, str]()
    if joint_lowering_reason(job.plan, job.export, several=True) is None:
        directories = lower_without_weights(job, store)
        if weights:
            with opened(job) as found:
                unfit = _unfit(job.plan, _read(directories))
                _lowered_with_weights(job, unfit, found, store)
    with suppress(InputError):  # without `weights`, the files are seldom declared
        files = map(job.inputs.find, with_shards(weights_names(job.plan.weights), job.inputs))
        return [] if unfit else [path for path in files if path is not None]
    return []


def directories(scratch: Path, names: Sequence[str]) -> list[Path]:
    """See `OneByOne.directories`."""
    from etplugins.templates.method_archive import EMITTED

    ways = [[path for path in places_of(scratch, name) if path.exists()] for name in names]
    return [next(path for path in each if (path / EMITTED).exists()) for each in ways if each]


def lower_without_weights(job: LoweringJob[MethodPlan], store: MethodStore) -> dict[str, Path]:
    """Lowers the methods that a store does not have, without the content of weights.

    Returns:
        The directories of all methods except those that need the content of weights.
    """
    names = [name for name in job.plan.methods if not needs_weights(job.plan.of_method(name))]
    places, missing = store.directories(names, weights=False)
    if missing:
        with store.keep(missing, weights=False), opened(job) as found:
            _lower_methods(job, missing, found)
    return places


def _lower_methods(
    job: LoweringJob[MethodPlan], directories: dict[str, Path], found: Opened, with_weights: str = ""
) -> None:
    """Lowers methods into empty directories. Several run at the same time, and all use the same imports.

    Each runs in a child process, so that changes of its code in PyTorch affect nothing else. A single method without
    other people's code is lowered in this process, which saves the time for copying pages of memory.

    Args:
        job: The methods. It may have more of them.
        directories: The directories.
        found: What `opened` returns.
        with_weights: The reason for lowering with the content of weights, for users; empty to lower without it.
    """
    at_once = min(job.options.jobs, len(directories))
    shown = f"lower {', '.join(directories)}{with_weights and f' with the weights, because {with_weights}'}"
    shown += f" ({at_once} at a time)" if at_once > 1 else ""
    saved, context = found
    import_executorch(job)
    export = _export(job, found, weights=bool(with_weights))  # read once, because the children share the memory
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


@dataclass(frozen=True)
class _Export:
    """An export with its weights: the parameters and buffers by name, and the shard of each parameter with a tag."""

    saved: SavedExport
    content: dict[str, torch.Tensor]
    shards: dict[str, str]
    context: StepContext
    weights: bool
    """Whether the weights have their content."""


def _export(job: LoweringJob[MethodPlan], found: Opened, *, weights: bool) -> _Export:
    from etbuild.lower import shards

    saved, context = found
    shard_of = shards.of_tensors(job.plan, saved.tensors)
    if not weights:
        return _Export(saved, _without_content(job.plan, saved, shard_of), shard_of, context, weights)
    with job.stage("read the weights"):
        return _Export(saved, open_content(job, saved).loaded(), shard_of, context, weights)


def _without_content(
    lower_plan: MethodPlan, saved: SavedExport, shard_of: Mapping[str, str]
) -> dict[str, torch.Tensor]:
    """The parameters and buffers by name, in memory. Only tensors that the export knows have content: those of zeros,
    and the stand-ins for adapters.

    Args:
        lower_plan: The lower plan.
        saved: The export.
        shard_of: The shard of each parameter that has a tag, by name.
    """
    import torch

    from etbuild.export.read_archive import Content
    from etbuild.lower import shards
    from etplugins.templates import unbound

    known = {*saved.zeros, *shards.of_adapters(lower_plan, shard_of)}
    content = Content(saved, dict[str, torch.Tensor]().__getitem__, known).loaded()
    for entry in saved.tensors:
        if entry.name not in content:
            content[entry.name] = content[entry.same_as] if entry.same_as else unbound.weight(entry)
    return content


def _lower_and_save(part: MethodPlan, options: LoweringOptions, export: _Export, directory: Path) -> None:
    """Lowers and emits the method of a plan, and saves it in an empty directory."""
    from etplugins.templates import method_archive

    (name,) = part.methods
    if export.weights:
        load_custom_ops(part, export.context)
        with acceleration(options, directory / method_archive.BLOBS):
            method_archive.write(directory, name, _emitted(part, export)[0])
    elif reasons := _why_weights(part, options, export, directory):
        method_archive.write_why_weights(directory, name, reasons)


def _why_weights(part: MethodPlan, options: LoweringOptions, export: _Export, directory: Path) -> list[str]:
    """Lowers and emits the method of a plan without the content of weights, and saves it in an empty directory.

    Returns:
        For users: what read the content of weights. Then nothing is saved, and the method needs that content.
    """
    from etplugins.templates import method_archive, unbound

    (name,) = part.methods
    load_custom_ops(part, export.context)
    with unbound.watched(backends.weight_functions(part.backends)) as watch, acceleration(options, notes=watch):
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


def _merge(lowering: Lowering, places: Mapping[str, Path], store: MethodStore) -> list[Artifact]:
    """Binds lowered methods to the content of weights, and merges them into one program.

    If the methods depend on each other after all, lowers all methods together.

    Args:
        lowering: The methods, and where the program is written.
        places: The directory of each method that was lowered without the content of weights. The other methods
            are lowered here, with the content.
        store: Has some of the methods that must be lowered with the content of weights, and keeps the others.

    Raises:
        InputError: A lowered method is damaged.
    """
    with opened(lowering.job) as found:
        import_executorch(lowering.job, lowers=False)
        from etbuild.lower import shards

        saved, context = found
        job = lowering.with_constants(saved).job
        shard_of = shards.of_tensors(job.plan, saved.tensors)
        parts, reasons = _bound(job, found, _read(places), store)
        reason = _shared_reason({name: part.facts[name].buffers for name, part in parts.items()})
        if reason is not None:
            print(f"note: all methods are lowered together, because {reason}", file=sys.stderr)
            return lowering.together(found, reason)
        emitted = list(parts.values())
        return write_program(job.plan, emitted, shard_of, context, lowering.directory, reasons, job.export.notes)


def _shared_reason(methods: Mapping[str, Buffers | None]) -> str | None:
    """The reason why methods that were lowered one by one cannot be merged, for users; None if there is none.

    If a method was lowered by itself, it may be unknown what other methods write to: exports do not show all writes.

    Args:
        methods: The buffers of each method by name, if the program shares the buffers that methods write to.
    """
    from etbuild.emit import shared_buffers
    from etbuild.model.tensor_facts import original_name

    shared = {name: buffers for name, buffers in methods.items() if buffers is not None}
    writers = shared_buffers.writers(shared)
    for _, buffers in sorted(shared.items()):
        planned = {original_name(buffer.name, methods) for buffer in buffers.planned}
        used = writers.keys() & set(buffers.parts[0].used)
        for name in sorted((used - planned - set(buffers.unplanned)) | (planned - writers.keys())):
            return f"only lowering shows which methods write to `{name}`"
    return None


def _read(directories: Mapping[str, Path]) -> dict[str, SavedMethod]:
    from etplugins.templates import method_archive

    return {name: method_archive.read(path, name) for name, path in sorted(directories.items())}


def _unfit(plan: MethodPlan, templates: Mapping[str, SavedMethod]) -> dict[str, str]:
    """The methods that must be lowered with the content of weights, and why, for users."""
    unfit = {name: needs_weights(plan.of_method(name)) or "" for name in plan.methods if name not in templates}
    return unfit | {name: each.why_weights[0] for name, each in templates.items() if each.why_weights}


def _bound(
    job: LoweringJob[LowerPlan], found: Opened, templates: Mapping[str, SavedMethod], store: MethodStore
) -> tuple[dict[str, Emitted], dict[str, str]]:
    """Methods with the content of weights, in the order of their names; and why some were lowered with it."""
    from etbuild.lower import finite_weights
    from etplugins.templates import method_archive
    from etplugins.templates.binding import Binding, CannotBind
    from etplugins.templates.recipes import Ingredients

    reasons = _unfit(job.plan, templates)
    methods = {**templates, **_lowered_with_weights(job, reasons, found, store)}
    with job.stage("read the weights"):
        needed = frozenset[str]().union(*(method.weights for method in methods.values()))
        content = open_content(job, found[0], needed)
    (made := store.directory / ".made").mkdir()  # not the name of a method
    binding = Binding(Ingredients(content, _Functions(job.plan.backends)), job.options.jobs, made)
    parts = {}
    kinds = {name: kind for _, method in sorted(methods.items(), reverse=True) for name, kind in method.kinds.items()}
    counts = [partial(finite_weights.counted, content, {name: kind}) for name, kind in sorted(kinds.items())]
    # Once for all methods, because it reads the weights.
    non_finite = {name: found for each in at_once(counts, job.options.jobs) for name, found in each.items()}
    for name, method in sorted(methods.items()):
        try:
            with job.stage(f"bind {name}") if method.weights else nullcontext():
                parts[name] = _with_non_finite(method_archive.load(method, binding), method.kinds, non_finite)
        except CannotBind as error:
            # No reason for the report: it depends on the content of weights, and is none where nothing is bound.
            print(f"note: `{name}` is lowered with its weights, because {error}", file=sys.stderr)
            lowered = _lowered_with_weights(job, {name: str(error)}, found, store)
            parts[name] = method_archive.load(lowered[name], binding)
    return parts, reasons


class _Functions(dict[str, Callable[..., Any]]):
    """The functions of backends by name. They are imported when a recipe has one: most have none."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def __missing__(self, name: str) -> Callable[..., Any]:
        found = backends.weight_functions(self._names)[name]
        function: Callable[..., Any] = self.setdefault(name, getattr(found.owner, found.attribute))
        return function


def _with_non_finite(emitted: Emitted, weights: Collection[str], non_finite: Mapping[str, NonFiniteWeight]) -> Emitted:
    found = {name: each for name, each in non_finite.items() if name in weights}
    return replace(emitted, non_finite={**emitted.non_finite, **found})


def _lowered_with_weights(
    job: LoweringJob[MethodPlan], reasons: Mapping[str, str], found: Opened, store: MethodStore
) -> dict[str, SavedMethod]:
    """Lowers methods with the content of weights, except those that a store has.

    Args:
        job: The methods. It may have more of them.
        reasons: Why each of them is lowered in this way, for users.
        found: What `opened` returns.
        store: The store.
    """
    places, missing = store.directories(reasons, weights=True)
    if missing:
        with store.keep(missing, weights=True):
            _lower_methods(job, missing, found, next(reasons[name] for name in missing))
    return _read(places)
