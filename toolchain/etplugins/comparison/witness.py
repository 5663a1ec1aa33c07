"""The witness of a comparison: the user's model in eager PyTorch, in a process of its own.

The model's code may change anything in its process. Importing what a model needs takes long, so the process starts
while methods are exported or lowered. Then it waits for the calls in which the program agreed with the exported
methods.
"""

from __future__ import annotations

import functools
import os
import pickle
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild.errors import BuildError, Problem
from etbuild.exception_text import hints, summary
from etbuild.inputs.sources import UsedSources
from etbuild.inputs.step_context import StepContext, silent
from etbuild.inputs.user_code import active_finder
from etbuild.steps.method_change import adapters
from etbuild.steps.saved_export import LoweringJob, load_custom_ops, pytorch_imported, sources_importable
from etbuild.surroundings.process_state import undone
from etplugins.comparison.beside import Beside
from etplugins.comparison.compared_methods import ComparedMethods, import_all, weights_of_adapters
from etplugins.comparison.known import IN_PART
from etplugins.comparison.parts import ComparePlan

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from etplugins.comparison.compare import Call, ComparedMethod, Comparison, Wrong
    from etplugins.comparison.eager import EagerMethod
    from etplugins.comparison.large_weights import LargeWeights

MORE_OR_LESS = "`checks.compare` can allow more, or leave the method out with a reason"
"""The last hint of an error about a comparison."""
_LARGE = 1 << 30  # bytes of declared files: a larger model waits until processes that need memory have ended
_BRANCHES = (
    "a branch on `torch.compiler.is_exporting()`, `is_compiling()` or `training`, state that only Python sees, weights "
    "that are read before they are loaded, or a factory that makes another model each time are the usual causes"
)


def write_calls(file: Path, methods: Sequence[ComparedMethod], calls: Sequence[Call]) -> dict[str, str]:
    """Writes the calls of methods that share state, for the witness. Returns notes by method if they cannot be written.

    Args:
        file: The file.
        methods: The methods. The structure of their inputs may contain classes of the model.
        calls: The calls. In them, the program agreed with the exported methods.
    """
    import torch

    from etplugins.comparison.model import ExportedForm

    try:
        forms = pickle.dumps({method.name: ExportedForm.of(method.program) for method in methods})
        torch.save({"forms": forms, "calls": calls}, file)
    except Exception as error:  # noqa: BLE001 - classes of the model may raise anything
        file.unlink(missing_ok=True)
        why = f"was not compared with the model: its calls cannot be written: {summary(error)}"
        return {method.name: why for method in methods}
    return {}


def witnesses(plan: ComparePlan) -> list[str]:
    """The methods that can be compared with the model. Those from files have no model. A recipe, or training for
    quantization, changes the weights."""
    return [
        name
        for name in plan.methods
        if plan.comparisons[name].leave_out is None
        and (method := plan.exported.methods[name]).program is None
        and (method.quantize is None or not method.quantize.trains)
        and "quantize" not in method.from_recipe
    ]


def allow_fast_products(*, has_losses: bool) -> None:
    """Lets this process multiply matrices by all instructions of its processor, if it has not multiplied any yet.

    What an export multiplies becomes a part of its program, and has to be the same on each machine. A comparison only
    allows for rounding.

    Args:
        has_losses: Whether methods compute in fewer bits. Their errors become a text, which has to be the same, too.
    """
    if not has_losses:
        os.unsetenv("MKL_CBWR")  # `os.environ` keeps it: it is how a building process is known


class Witness:
    """The process of the model.

    Args:
        job: Returns the export, and what to compare. The export may not exist yet when the process starts.
        used: The sources that the model comes from.
        examples: The example inputs that the export saves.

    Attributes:
        used: The sources.
        examples: The example inputs.
    """

    def __init__(self, job: Callable[[], LoweringJob[ComparePlan]], used: UsedSources, examples: Path) -> None:
        self.used, self.examples = used, examples
        self._read_job = job
        self._process: Beside | None = None

    def start(self) -> None:
        """Starts a process that makes the model, unless there is one."""
        if self._process is None and witnesses((job := self._read_job()).plan):
            with pytorch_imported(job):
                import_all(job.options)
            self._process = Beside("making the model", self._run)

    def compare(self, calls: Mapping[Path, Sequence[str]]) -> dict[str, str]:
        """Compares the model with exported methods. Returns notes, by method.

        Args:
            calls: Files that `write_calls` wrote, each with the methods that are called there.

        Raises:
            InputError: A declared input is missing or does not fit.
            BuildError: The model cannot be made, or computes something else.
        """
        job = self._read_job()
        known = witnesses(job.plan)
        names = [name for called in calls.values() for name in called if name in known]
        if not names:
            return {}
        with job.stage(f"compare {', '.join(sorted(names))} with the model"):
            self.start()
            assert self._process is not None, "it has started"
            self._process.result()
            self._process.give([*calls])
            notes: dict[str, str] = self._process.result()
            return notes

    def close(self) -> None:
        """Ends the process, if it runs."""
        if self._process is not None:
            self._process.end()
        self._process = None

    def _run(self) -> Generator[None, list[Path], dict[str, str]]:
        """Runs in the process. The result also has what contexts find when they end."""
        job = self._job()
        with pytorch_imported(job), sources_importable(job, self.used) as context:
            from etplugins.comparison.large_weights import LargeWeights

            load_custom_ops(job.plan, context)
            is_large = sum(path.stat().st_size for path in job.inputs.data.values()) > _LARGE
            weights, methods = LargeWeights(), job.plan.exported.methods
            if all(methods[name].quantize is not None for name in witnesses(job.plan)):  # then there are few calls
                context = replace(context, spill=weights.take)
            eager = None if is_large else _eager_methods(job, context)
            calls = yield
            job = self._job()
            active_finder().lines = job.export.lines
            known = _Known(job, context, self.examples)
            return _compared(known, eager or _eager_methods(job, context), calls, weights)

    def _job(self) -> LoweringJob[ComparePlan]:
        """Reads the job in the process. Only the parent reports stages."""
        return replace(self._read_job(), stage=silent)


@dataclass
class _Known:
    """The data that the process has read.

    Attributes:
        job: The export, and what to compare.
        context: What every step needs.
        examples: The example inputs that the export saved.
    """

    job: LoweringJob[ComparePlan]
    context: StepContext
    examples: Path

    @cached_property
    def exported(self) -> ComparedMethods:
        """The exported methods. They are read only if a difference is found."""
        from etbuild.export import read_archive

        return ComparedMethods.read(self.job, read_archive.read(self.job.export), self.context, self.examples)


def _eager_methods(job: LoweringJob[ComparePlan], context: StepContext) -> dict[str, EagerMethod]:
    """Makes the model, and returns its methods by name. It computes in float: no layer keeps integers."""
    from etbuild.model import module
    from etbuild.steps.create_module import create_module
    from etbuild.surroundings.random_seeds import seed
    from etplugins.comparison.eager import EagerMethod

    plan = job.plan.exported
    seed(plan.model.seed)  # modules may draw numbers when they are imported
    in_floats = plan.replace(methods={name: method.replace(quantize=None) for name, method in plan.methods.items()})
    with undone():  # later reads may use paths below the current directory
        root = create_module(in_floats, context, job.plan.weights, in_place=True)
    tensors = module.named_tensors(root)
    for name, content in weights_of_adapters(job, tensors.keys()).items():
        tensors[name].copy_(content)

    def applied(method: str) -> AbstractContextManager[object]:
        if not plan.adapters:
            return nullcontext()
        return adapters().applied(root, method, plan.methods[method].adapter)

    return {
        name: EagerMethod(root, plan.methods[name].entry, functools.partial(applied, name))
        for name in witnesses(job.plan)
    }


def _compared(
    known: _Known, eager: Mapping[str, EagerMethod], files: Sequence[Path], weights: LargeWeights
) -> dict[str, str]:
    """Compares in child processes: calls change the state of the model."""
    from etplugins.comparison.compare import Wrong

    found = _found(known, eager, files, weights)
    wrong = [Wrong(**each["wrong"]) for each in found if each["wrong"] is not None]
    if wrong:
        raise BuildError([_problem(known, eager, each, search=number == 0) for number, each in enumerate(wrong)])
    return {name: what for each in found for name, what in each["notes"].items()}


def _found(
    known: _Known, eager: Mapping[str, EagerMethod], files: Sequence[Path], weights: LargeWeights
) -> list[dict[str, Any]]:
    """The results for each file. Only a model with all weights in memory can fail, or differ."""
    from etplugins.runtime import child

    tasks = {
        f"comparing with the model ({number})": functools.partial(_first_wrong, known, eager, file)
        for number, file in enumerate(files)
    }
    if weights:
        with suppress(Exception), weights:
            found = [*child.run(tasks, known.job.options.jobs).values()]
            if all(each["whole"] for each in found):
                return found
        weights.give_all(next(iter(eager.values())).root)
    return [*child.run(tasks, known.job.options.jobs).values()]


def _first_wrong(known: _Known, eager: Mapping[str, EagerMethod], file: Path) -> dict[str, Any]:
    """The first call in which an exported method differs from the model, as plain values; notes by method; and whether
    all calls agree."""
    import torch

    from etplugins.comparison.model import ModelComparison

    given = torch.load(file, weights_only=True)
    forms = pickle.loads(given["forms"])  # safe: this build or an earlier one has written it
    precision = known.job.plan.exported.model.precision
    allow_fast_products(has_losses=precision is not None or any(form.is_quantized for form in forms.values()))

    def exported() -> Comparison:
        from etplugins.comparison.compare import Comparison

        return Comparison(known.exported.methods(sorted(forms))[0])

    tolerances = {name: settings.tolerance for name, settings in known.job.plan.comparisons.items()}
    calibrated = {name for name, method in known.job.plan.exported.methods.items() if method.quantized_after_export}
    comparison = ModelComparison(eager, forms, tolerances, calibrated, precision is not None, exported)
    wrong = comparison.first_wrong(given["calls"])
    notes = {name: f"{IN_PART} {what}" for name, what in comparison.notes.items()}
    for name, loss in comparison.losses.items():
        what = "is quantized" if precision is None else f"computes in {precision.compute}"
        notes.setdefault(name, f"{what}: {loss} against the float model")
    whole = wrong is None and not comparison.notes
    return {"wrong": None if wrong is None else vars(wrong), "notes": notes, "whole": whole}


def _problem(known: _Known, eager: Mapping[str, EagerMethod], wrong: Wrong, *, search: bool) -> Problem:
    where: str | None = "the cause was searched for only in the first wrong method"
    if wrong.blames == "quantization":
        where = None
    elif search:
        (method,), _ = known.exported.methods([wrong.method], whole=True)
        where = out_of_range(known.job, method, wrong, "overflow", "underflow")
        where = where or _where(known.job, method.program, eager[wrong.method], wrong)
    return Problem(wrong.problem, ("methods", wrong.method), hints(where, MORE_OR_LESS))


def out_of_range(job: LoweringJob[ComparePlan], method: ComparedMethod, wrong: Wrong, *kinds: str) -> str | None:
    """A text for people that says where a method leaves the range of 16-bit floats, in the first of these ways:
    "overflow" or "underflow". None if it does not, or computes in float32."""
    from etplugins.comparison import overflow

    for kind in kinds if method.converted else ():
        if (node := overflow.first(method.program, method.weights, wrong.leaves, wrong.state, kind)) is not None:
            return f"the first {kind} is in {overflow.described(node, method.name, job.export.lines, kind)}"
    return None


def _where(job: LoweringJob[ComparePlan], program: ExportedProgram, eager: EagerMethod, wrong: Wrong) -> str:
    """A text for people that says where the exported method differs from the model."""
    from etplugins.comparison.graph import with_state
    from etplugins.runtime import child

    graph, spec = with_state(program, wrong.state), program.call_spec.in_spec

    def find() -> str | None:
        for _, leaves in wrong.earlier:
            eager.call(spec, leaves)
        return eager.different_module(spec, graph, wrong.leaves)

    with job.stage(f"search the model for parts that differ in the export of `{wrong.method}`"):
        try:
            found: str | None = child.result("the model", find)
        except Exception as error:  # noqa: BLE001 - whatever happens while it searches, the export is wrong
            return f"the search for the module failed: {summary(error)}"
    passes = "; or `passes.aten` changes what it computes" if job.plan.exported.passes else ""
    cause = f"{_BRANCHES}{passes}"
    first = "the first submodule whose output the exported method does not compute is"
    return cause if found is None else f"{first} {found}: {cause}"
