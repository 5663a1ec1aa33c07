"""Estimates what a build and its program take. It exports the methods and lowers them, as the build does, and what it
makes stays in the cache for the build. Only a method that cannot be lowered without weights reads them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild.errors import CheckError
from etbuild.files.digests import hashed_once
from etbuild.guard.reads import unkeyed
from etbuild.plan.plan import Plan, from_manifest
from etbuild.publishing.artifacts import scratch_in
from etbuild.surroundings.library_output import library_messages_off, stdout_for_results
from etkit.estimating import peak, shapes
from etkit.local.pipeline import STEPS, Pipeline, Request
from etkit.tables import size
from etplugins.transformers.parts import settings_of
from etplugins.transformers.tasks import TASKS

if TYPE_CHECKING:
    from etbuild.key.declared import Inputs
    from etbuild.manifest.validate import Manifest
    from etkit.estimating.limit import Limit
    from etkit.estimating.program import Program
    from etkit.local.build import BuildOptions

_EXPORT, _LOWER = STEPS[:2]
_LONG_CALL = 512
"""Tokens: an application reads a prompt as fast with calls of so many as with longer ones."""


@dataclass(frozen=True)
class Estimate:
    """What a build and its program take.

    Attributes:
        name: The name of the program.
        program: What the program takes.
        needs: What the memory of the build depends on.
        with_weights: Why methods were lowered with their weights, by method.
        advice: What takes less memory.
        seconds: How long the estimate took.
    """

    name: str
    program: Program
    needs: peak.Needs
    with_weights: Mapping[str, str]
    advice: tuple[str, ...]
    seconds: float

    @property
    def peak(self) -> int:
        """The largest memory of the build, in bytes, of all its processes."""
        return peak.of_build(self.needs)

    def fits(self, room: Limit) -> bool:
        """Whether the build fits into the memory, with a margin."""
        return self.peak * peak.MARGIN <= room.bytes


class _Nothing:
    """The comparison, which does not run here: its process would make the model."""

    def start(self) -> None:
        """Does nothing."""

    run = close = start


class _Planning(Pipeline):
    @cached_property
    def comparison(self) -> Any:
        """No comparison."""
        return _Nothing()


@hashed_once()
def estimated(manifest: Manifest, inputs: Inputs, how: BuildOptions, room: Limit, *, several: bool) -> Estimate:
    """Estimates what a build of a manifest takes.

    Args:
        manifest: The manifest, with a variant merged into it.
        inputs: The sources and data that the build may read.
        how: How the build would run.
        room: The memory of the machine.
        several: Whether to name the program beside its steps.

    Raises:
        InputError: A declared input is missing or does not fit.
        BuildError: The model cannot be exported or lowered.
        CheckError: Not even the tensors of the model fit into the memory.
    """
    from etbuild.processes import forked

    forked.loaded.clear()  # drops what an earlier estimate in this process has imported
    began = time.monotonic()
    plan = from_manifest(manifest.data)
    plan.check_backends()
    named = f"{plan.name}: " if several else ""
    with scratch_in(Path(tempfile.gettempdir())) as scratch, unkeyed():
        request = Request.read(plan, inputs)
        with closing(_Planning(request, scratch, how.stage, how.lowering, how.cache)) as pipeline:
            with how.step(f"{named}shapes"):
                _check_shapes(pipeline, room)
            with how.step(f"{named}export"):
                pipeline.run(_EXPORT)
            with how.step(f"{named}lower without weights"), library_messages_off(), stdout_for_results():
                program, weights, reasons = _lowered(pipeline)
    needs = peak.Needs.of(request, program, weights, how.lowering.jobs)
    advice = tuple(advised(plan, program))
    return Estimate(plan.name, program, needs, reasons, advice, time.monotonic() - began)


def _check_shapes(pipeline: Pipeline, room: Limit) -> None:
    """Refuses a model whose tensors do not fit, before the export makes them."""
    taken = shapes.made_by_code(pipeline)
    if taken is not None and taken > room.bytes:
        message = f"the tensors that the code of the model makes take {size(taken)}, and {room}"
        raise CheckError.at(("model",), message, "masks and tables for each position grow with the square of a window")


def _lowered(pipeline: Pipeline) -> tuple[Program, int, Mapping[str, str]]:
    """Lowers the methods. Returns the program, the bytes of the weights, and why methods were lowered with these."""
    from etbuild.export import read_archive
    from etbuild.steps.saved_export import joint_lowering_reason
    from etplugins.templates import method_archive, one_by_one
    from etplugins.templates.method_store import MethodStore

    plan = pipeline.request.plan.lower_plan
    (directory := pipeline.directory / "methods").mkdir()
    found = {}
    if not plan.adapters and not joint_lowering_reason(plan, pipeline.export, several=len(plan.methods) > 1):
        job = pipeline.job(plan)
        places = one_by_one.lower_without_weights(job, MethodStore(directory, pipeline.kept))
        found = {name: method_archive.read(path, name) for name, path in sorted(places.items())}
    saved = read_archive.read(pipeline.export)
    weights = sum(entry.nbytes for entry in saved.in_weights if entry.same_as is None)
    if found.keys() == plan.methods.keys() and all(each.emitted for each in found.values()):
        return _unwritten(pipeline, [*found.values()]), weights, {}
    directory.rename(pipeline.directory / "tried")  # the step makes it anew
    pipeline.run(_LOWER)
    program = _written(pipeline)
    adapted = dict.fromkeys(plan.methods if plan.adapters else (), "the model has adapters")
    return program, weights or program.size, {**adapted, **pipeline.lowering["with_weights"]}


def _unwritten(pipeline: Pipeline, methods: list[Any]) -> Program:
    """The program of methods that were lowered without weights."""
    from etbuild.emit import emit_program
    from etbuild.lower import shards
    from etbuild.steps.lower import Lowering, import_executorch, opened
    from etkit.estimating import program, unread

    plan = pipeline.request.plan.lower_plan
    with opened(pipeline.job(plan)) as (saved, _):
        lowering = Lowering(pipeline.job(plan), pipeline.program, pipeline.directory).with_constants(saved)
        import_executorch(lowering.job, lowers=False)
        parts = unread.load(methods)
        kept = program.kept_by_delegates(parts)
        shard_of = shards.of_tensors(plan, saved.tensors)
        merged, content, named = emit_program.unwritten(lowering.job.plan, parts, shard_of)
        files = {f"{plan.name}.pte": len(content)}
        files |= {f"{plan.name}.{shard}.ptd": len(each) for shard, each in named.items()}
        return program.described(merged.program.execution_plan, files, kept, plan.share_mutable_buffers)


def _written(pipeline: Pipeline) -> Program:
    """A program that was written."""
    from etbuild.files import program_file
    from etkit.estimating import program

    plan, facts = pipeline.request.plan.lower_plan, pipeline.lowering
    files = {each["file"]: each["size"] for each in facts["artifacts"]}
    parsed = program_file.read_program_file(pipeline.program / f"{plan.name}.pte")
    kept = program.kept_of_file(parsed, plan.methods, facts)
    return program.described(parsed.program.execution_plan, files, kept, plan.share_mutable_buffers)


def advised(plan: Plan, program: Program) -> Iterator[str]:
    """Yields what takes less memory than this program of a plan, for users."""
    settings = settings_of(plan.model)
    cache = None if settings is None else settings.cache
    decoders = [each for each in program.methods.values() if each.state]
    if settings is None or cache is None or not decoders:
        return
    rest, call = sum(each.planned - each.state for each in decoders), max(each.call for each in decoders)
    if call > _LONG_CALL and rest > program.state:
        yield (
            f"a call may have {call} tokens, for which {size(rest)} are planned: with `max_seq_length: {_LONG_CALL}` "
            "in `cache`, a longer prompt takes several calls"
        )
    if settings.task is not None and TASKS[settings.task].has_encoder:
        return  # its cache has only one kind
    if cache.kind is None and rest > program.state:
        yield (
            "the scores of attention, heads x call x window numbers, are planned several times: with `kind: custom` in "
            "`cache`, they take no planned memory"
        )
    if cache.kind in (None, "custom") and program.state > rest:
        yield f"the cache takes {size(program.state)}: `kind: quantized` takes less than a third of it in float32"
