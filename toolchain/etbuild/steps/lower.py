"""Lowering: the methods become one program. A plug-in lowers them one by one, if that gives the same result."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from etbuild import notes, switches
from etbuild.files.writing import Artifact
from etbuild.guard import children
from etbuild.inputs.step_context import StepContext
from etbuild.key.toolchain import check_installed
from etbuild.lower import weight_sharing
from etbuild.plan.step_plans import LowerPlan, MethodPlan
from etbuild.results import LoweringFacts
from etbuild.steps.executorch_imports import imports_of_executorch
from etbuild.steps.facts import LOWERING_SCHEMA, write_json
from etbuild.steps.lowering_options import LoweringOptions
from etbuild.steps.lowering_weights import (
    check_of_adapters,
    described_weights,
    exported_with_weights,
    with_adapters,
)
from etbuild.steps.one_by_one import KeptMethods, one_by_one
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
    from executorch.exir import ExecutorchProgramManager

    from etbuild.emit.emitted import Emitted
    from etbuild.export.read_archive import SavedExport

Opened = tuple["SavedExport", StepContext]


@dataclass(frozen=True)
class Lowering:
    """Lowers the methods of an export to one program, with their weights.

    Attributes:
        job: The methods.
        directory: An existing directory for `NAME.pte`, the named data and `NAME.lowering.json`.
        scratch: An existing directory for what is only needed meanwhile.
    """

    job: LoweringJob[LowerPlan]
    directory: Path
    scratch: Path

    @property
    def joint_reason(self) -> str | None:
        """Why the methods must be lowered together, for users; None if there is no reason."""
        return joint_lowering_reason(self.job.plan, self.job.export, several=len(self.job.plan.methods) > 1)

    @property
    def may_be_split(self) -> bool:
        """Whether the methods can be lowered by themselves, and nobody has said that they must not be."""
        return self.job.options.accelerate and self.joint_reason is None

    def run(
        self,
        kept: KeptMethods | None = None,
        on_emitted: Callable[[ExecutorchProgramManager], None] | None = None,
    ) -> list[Artifact]:
        """Lowers the methods. If that gives the same program, they are lowered one by one.

        Args:
            kept: Has some of the methods, and keeps the others. None: nothing does.
            on_emitted: Gets what ExecuTorch has emitted, which has an ETRecord. All methods are then lowered together,
                in this process.

        Returns:
            The artifacts, in the order of `directory`.

        Raises:
            InputError: A declared input is missing or does not fit.
            BuildError: The methods cannot be lowered, or the program cannot be written.
        """
        if on_emitted is None and self.may_be_split and (plugin := one_by_one()) is not None:
            return plugin.lower(self, kept or KeptMethods())
        with opened(self.job) as found:
            if on_emitted is not None:
                import_executorch(self.job)
                return self._together(found, self.joint_reason, on_emitted)
            return self.together(found, self.joint_reason)

    def with_constants(self, saved: SavedExport) -> Lowering:
        """Adds the constants that the export computed. Those of the manifest come first."""
        said = self.job.plan.constant_methods
        constants = {**said, **{name: value for name, value in saved.constants.items() if name not in said}}
        return replace(self, job=replace(self.job, plan=self.job.plan.replace(constant_methods=constants)))

    def together(self, found: Opened, reason: str | None) -> list[Artifact]:
        """Lowers all methods together: in a child process if other people's code runs, so that nothing it changes
        reaches the report.

        Args:
            found: What `opened` returns.
            reason: Why they must be lowered together, for users; None if they need not.
        """
        saved, _ = found
        import_executorch(self.job)
        if saved.export_plan is None and not runs_code_of_others(self.job.plan, saved):
            return self._together(found, reason)
        return children.run_one(functools.partial(self._together, found, reason))

    def _together(
        self,
        found: Opened,
        reason: str | None,
        on_emitted: Callable[[ExecutorchProgramManager], None] | None = None,
    ) -> list[Artifact]:
        from etbuild.emit.emit_methods import Lowered, emit_methods
        from etbuild.lower import shards
        from etbuild.lower.finite_weights import non_finite
        from etbuild.lower.lower_methods import lower_programs

        saved, context = found
        job = self.with_constants(saved).job
        load_custom_ops(job.plan, context)
        if saved.export_plan is None:
            with job.stage("read the export and the weights"), acceleration(job.options):
                shard_of, said = shards.of_tensors(job.plan, saved.tensors), list[str]()
                programs = load_methods(saved, open_content(job, saved).loaded(), job.plan.methods)
        else:
            with notes.collected() as said:
                shard_of, programs = exported_with_weights(job.plan, saved.export_plan, context)
        weights, check = non_finite(programs), check_of_adapters(job.plan, programs, shard_of)
        # Names of methods do not begin with a point.
        with TemporaryDirectory(prefix=".", dir=self.scratch) as blobs, acceleration(job.options, Path(blobs)):
            with job.stage(f"lower {', '.join(programs)}"):
                edge = lower_programs(job.plan, programs, shard_of, etrecord=on_emitted is not None)
            with job.stage("emit"):
                emitted = emit_methods(job.plan, Lowered(edge, shard_of, weights, None, on_emitted))
                check(emitted)
            # The same as for methods that are lowered one by one, as far as it is known before.
            known = {name: reason or needs_weights(job.plan.of_method(name)) for name in job.plan.methods}
            reasons = {name: why for name, why in known.items() if why is not None}
            of_export = [*dict.fromkeys([*job.export.notes, *said])]
            return write_program(job.plan, [emitted], shard_of, context, self.directory, reasons, of_export)


@contextmanager
def opened(job: LoweringJob[MethodPlan]) -> Iterator[Opened]:
    """Checks the packages, and reads the export."""
    check_installed()
    with opened_export(job) as found:
        yield found


def import_executorch(job: LoweringJob[MethodPlan], *, lowers: bool = True) -> None:
    """Imports what lowering needs, before a process forks for it. The argument `lowers` is that of
    `imports_of_executorch`."""
    with job.stage("import ExecuTorch"):
        for part in imports_of_executorch(job.options, lowers=lowers):
            part()


def acceleration(
    options: LoweringOptions, blobs: Path | None = None, notes: switches.Notes | None = None
) -> AbstractContextManager[None]:
    """Turns the switches on if the options ask for it. Keeps backends' results from weights in the directory `blobs`,
    if given."""
    return switches.lowering(blobs, options.jobs, notes) if options.accelerate else nullcontext()


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
