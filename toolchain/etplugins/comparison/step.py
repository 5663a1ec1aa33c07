"""Compares a program with its model and its exported methods: the runtime must compute what PyTorch computes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from etbuild.errors import BuildError, InputError, Problem
from etbuild.exception_text import hints, summary
from etbuild.files import writing
from etbuild.files.digests import canonical_json, digest
from etbuild.guard import children
from etbuild.inputs.sources import UsedSources
from etbuild.inputs.step_context import StepContext
from etbuild.results import FileHead, LoweringFacts, ProgramFile, ProgramMethod
from etbuild.steps.saved_export import LoweringJob, load_custom_ops, opened_export, runs_code_of_others
from etplugins.comparison import references
from etplugins.comparison.compared_methods import ComparedMethods, import_all
from etplugins.comparison.known import NOT, Agreement, Group, Known, of_runtime
from etplugins.comparison.parts import ComparePlan
from etplugins.comparison.witness import (
    MORE_OR_LESS,
    Witness,
    allow_fast_products,
    out_of_range,
    witnesses,
    write_calls,
)
from etplugins.runtime import program_files

if TYPE_CHECKING:
    from etbuild.export.read_archive import SavedExport
    from etplugins.comparison.compare import ComparedMethod, Wrong
    from etplugins.runtime.program_files import ProgramFiles

RESULT = "comparison.json"
LARGEST_BYTES = 1 << 31
"""The largest size of files and planned memory together. The runtime needs as much again, beside the build."""
_ELSEWHERE, _LIMITED = "the build cannot run", "the runtime here cannot run all of it"
_CANNOT_RUN = (f"{NOT} {_ELSEWHERE}", f"{NOT} {_LIMITED}")
"""Begin the notes about methods that only another machine can run. Their quantization is judged all the same."""
_LEAVE_OUT = "if the application has kernels of its own, `checks.compare` can leave the method out with a reason"
_ROW_BY_ROW = "`.contiguous()` in the model, on the value that it returns, gives both the order of the dimensions"


class CompareStep:
    """The step `compare` of a build on the command line, as the pipeline there asks for it."""

    def __init__(self, job: Callable[[], LoweringJob[ComparePlan]], used: UsedSources, examples: Path) -> None:
        self._job, self._witness = job, Witness(job, used, examples)

    def start(self) -> None:
        """Starts the process of the model."""
        self._witness.start()

    def run(
        self, directory: Path, lowering: LoweringFacts, scratch: Path, result: Path, known: Known | None = None
    ) -> None:
        """Compares. Errors are those of `compare`."""
        agreement = compare(self._job(), self._witness, Built.below(directory, lowering), scratch, result, known)
        if agreement:
            writing.write(result.parent, "agreement.json", "comparison", canonical_json(agreement))
        self.close()

    def close(self) -> None:
        """Ends the process of the model."""
        self._witness.close()


@dataclass(frozen=True)
class Built:
    """The results of a lowering.

    Attributes:
        lowering: The facts of the lowering.
        program: The `.pte`.
        named_data: The `.ptd` files, by their names without a directory.
    """

    lowering: LoweringFacts
    program: Path
    named_data: Mapping[str, Path]

    @classmethod
    def below(cls, directory: Path, lowering: LoweringFacts) -> Built:
        """A program and its named data in a directory."""
        program, *named_data = (directory / artifact["file"] for artifact in lowering["artifacts"])
        return cls(lowering, program, {path.name: path for path in named_data})

    @property
    def size(self) -> int:
        """The size of all files, in bytes."""
        return sum(artifact["size"] for artifact in self.lowering["artifacts"])

    @property
    def files(self) -> ProgramFiles:
        """The files that the runtime loads.

        Raises:
            InputError: A file is missing.
        """
        program, *named_data = self.lowering["artifacts"]
        head: FileHead = {"file": program["file"], "size": program["size"], "sha256": program["sha256"]}
        facts: ProgramFile = {"kind": "program", **head, **self.lowering["program"]}
        names = [Path(artifact["file"]).name for artifact in named_data]
        missing = [name for name in names if name not in self.named_data]
        if missing:
            raise InputError.of(f"{self.program.name} needs {missing[0]}, which `--named-data` does not name")
        return program_files.ProgramFiles(self.program, tuple(self.named_data[name] for name in names), facts)


def compare(
    job: LoweringJob[ComparePlan],
    witness: Witness,
    built: Built,
    scratch: Path,
    result: Path,
    known: Known | None = None,
) -> Agreement:
    """Compares each method that the runtime here can run. Writes a note about the others. Returns figures for people.

    Args:
        job: The export, and how it was lowered.
        witness: The process of the model, which may have started.
        built: The program.
        scratch: An existing empty directory, for files that are only needed meanwhile.
        result: The file to write, in the form that Buck2 expects of a validation.
        known: Where earlier results are, and this one will be.

    Raises:
        InputError: A declared input is missing or does not fit.
        BuildError: The program cannot be loaded, or computes something else. The error names the method, the output,
            and the operator where the difference begins.
    """
    left_out, agreement = _left_out(job.plan, built), Agreement()
    wanted = [name for name in sorted(job.plan.methods) if name not in left_out]
    judged = [name for name in _calibrated(job.plan) if left_out.get(name, "").startswith(_CANNOT_RUN)]
    if wanted or judged:
        found, agreement = _compare(job, witness, built, wanted, judged, scratch, known)
        left_out = _joined(left_out, found)
    notes = [f"`{name}` {what}" for name, what in sorted(left_out.items())]
    message = {"message": "\n".join(notes)} if notes else {}
    said = canonical_json({"version": 1, "data": {"status": "success", **message}})
    writing.write(result.parent, result.name, "comparison", said)
    return agreement


def _calibrated(plan: ComparePlan) -> list[str]:
    """The methods whose exported form says how far it is from the model, also where nothing here can run them."""
    exported = plan.exported
    of_precision = exported.model.precision is not None
    return [name for name in witnesses(plan) if of_precision or exported.methods[name].quantized_after_export]


def _left_out(plan: ComparePlan, built: Built) -> dict[str, str]:
    """The methods that cannot be compared, each with the text of a note."""
    found = {}
    limits = {
        limit["method"]: limit["what"]
        for limit in reversed(built.lowering["runtime_limits"])
        if not program_files.has_own_kernel(limit["operator"])
    }
    for name in plan.methods:
        method, settings = built.lowering["program"]["methods"][name], plan.comparisons[name]
        elsewhere = references.elsewhere(method["delegates"], plan)
        if settings.leave_out is not None:
            found[name] = settings.leave_out
        elif elsewhere and (built.files.shares_state or not references.have(elsewhere)):
            found[name] = f"{_ELSEWHERE} {elsewhere[0]}"
        elif name in limits and not elsewhere:
            found[name] = f"{_LIMITED}: {limits[name]}"
        elif not plan.memory_planning[name].alloc_mutable_buffers:
            found[name] = "the application has the memory for its buffers"
        elif built.size + sum(method["memory"]) > LARGEST_BYTES:
            found[name] = f"the program and its memory take more than {LARGEST_BYTES >> 30} GB"
    return {name: f"{NOT} {why}" for name, why in found.items()}


def _compare(
    job: LoweringJob[ComparePlan],
    witness: Witness,
    built: Built,
    wanted: list[str],
    judged: list[str],
    scratch: Path,
    known: Known | None,
) -> tuple[dict[str, str], Agreement]:
    """Compares the program with the exported methods, and those with the model. Of the methods in `judged`, only the
    exported ones are called. Returns notes and figures, by method."""
    if job.options.jobs > 1:
        witness.start()
    groups = [*_groups(job.plan, built.files, wanted, scratch)] if wanted else []
    run = len(groups)
    groups += [Group.made(job.plan.of_methods([name]), scratch / name, True, runs=False) for name in judged]
    with opened_export(job, witness.used) as (saved, context):
        runs_others = saved.export_plan is not None or runs_code_of_others(job.plan, saved)
        runs_others = runs_others or any(method.samples for method in job.plan.exported.methods.values())  # a loader
        if known is not None:
            import_all(job.options)
            for group, part in zip(groups[:run], _parts(built, groups[:run]), strict=True):
                group.fetch(known, part, sources=runs_others)
        if left := [group for group in groups if group.of_runtime is None]:
            programs = functools.partial(_compare_programs, job, saved, context, witness.examples, built, left)
            notes, agreement = children.run_one(programs) if runs_others else programs()
            for group in left:
                group.of_runtime = {name: notes[name] for name in group.names if name in notes}
                group.agreement = {name: agreement[name] for name in group.names if name in agreement}
    of_model = witness.compare({group.calls: group.names for group in groups if group.needs_model})
    for group in groups:
        if group.needs_model:
            group.of_model = {name: of_model[name] for name in group.names if name in of_model}
        if known is not None:
            group.keep(known, sources=runs_others)
    said = _joined(
        {name: what for group in groups for name, what in (group.of_runtime or {}).items()},
        {name: what for group in groups for name, what in (group.of_model or {}).items()},
    )
    return said, {name: figures for group in groups for name, figures in group.agreement.items()}


def _groups(plan: ComparePlan, files: ProgramFiles, wanted: list[str], scratch: Path) -> Iterator[Group]:
    """Yields the methods that are compared together: those that share state, or one."""
    with_model = {*witnesses(plan)}
    for number, names in enumerate([wanted] if files.shares_state else [[name] for name in wanted]):
        yield Group.made(plan.of_methods(names), scratch / str(number), not with_model.isdisjoint(names))


def _parts(built: Built, groups: Sequence[Group]) -> Iterator[str]:
    """Yields the digest of each group's part of the program. Any part of a file with named data counts for all."""
    program, *named_data = (artifact["sha256"] for artifact in built.lowering["artifacts"])
    digests: Mapping[str, str] = {}
    if len(groups) > 1:
        from etplugins.comparison.program_parts import method_digests

        digests = method_digests(built.program)
    methods = built.lowering["program"]["methods"]
    for group in groups:
        yield digest([named_data, [[name, methods[name], digests.get(name, program)] for name in group.names]])


def _joined(notes: Mapping[str, str], others: Mapping[str, str]) -> dict[str, str]:
    """Joins notes by method. A method may have several."""
    both = {name: f"{notes[name]}; it {others[name]}" for name in notes.keys() & others.keys()}
    return {**notes, **others, **both}


def _compare_programs(
    job: LoweringJob[ComparePlan],
    saved: SavedExport,
    context: StepContext,
    examples: Path,
    built: Built,
    groups: Sequence[Group],
) -> tuple[dict[str, str], Agreement]:
    """Compares the program with its exported methods, and writes calls for the witness. Returns notes and figures, by
    method."""
    import_all(job.options)
    from etplugins.comparison.compare import Wrong
    from etplugins.runtime import child

    load_custom_ops(job.plan, context)
    files, exported = built.files, ComparedMethods.read(job, saved, context, examples)
    names = [name for group in groups for name in group.names]
    with job.stage(f"compare {', '.join(names)}"):
        tasks = {
            f"comparing {', '.join(group.names)}": functools.partial(_first_wrong, exported, group, files)
            for group in groups
        }
        try:
            found: list[_Found] = [*child.run(tasks, job.options.jobs).values()]
        except BuildError as error:
            raise BuildError([_explained(problem, names, built.lowering) for problem in error.problems]) from error
    wrong = [Wrong(**each["wrong"]) for each in found if each["wrong"] is not None]
    if wrong:
        raise BuildError([_problem(exported, each, files, search=number == 0) for number, each in enumerate(wrong)])
    notes = {name: what for each in found for name, what in each["notes"].items()}
    return notes, {name: figures for each in found for name, figures in each["agreement"].items()}


def _explained(problem: Problem, methods: Iterable[str], lowering: LoweringFacts) -> Problem:
    """The problem of a child process that the runtime has ended, with its method.

    The hint names weights that are not finite: a backend may refuse them without a message.
    """
    ended = [name for name in methods if not problem.path and f"comparing {name}" in problem.message]
    path = ("methods", ended[0]) if ended else problem.path
    weights = ", ".join(sorted(lowering["non_finite"]))
    more = f"these weights have elements that are NaN or infinite: {weights}" if weights else None
    return replace(problem, path=path, hint=hints(problem.hint, more))


class _Found(TypedDict):
    """The findings of a child process: the fields of a wrong call, and the skipped calls and the figures, by method."""

    wrong: dict[str, Any] | None
    notes: dict[str, str]
    agreement: Agreement


def _first_wrong(exported: ComparedMethods, methods: Group, files: ProgramFiles) -> _Found:
    """The first wrong call as plain values, and what was left out. Runs in a child process: the runtime may crash.

    If all calls are right, it writes them for the witness.
    """
    from etplugins.comparison.compare import CannotRun, Comparison
    from etplugins.comparison.graph import is_quantized

    group, skipped = exported.methods(methods.names)
    allow_fast_products(has_losses=any(each.converted or is_quantized(each.program) for each in group))
    if not group:
        return {"wrong": None, "notes": skipped, "agreement": {}}
    if not methods.runs:
        return _without_runtime(exported, methods, group)
    of_group = {method.name: files.method(method.name) for method in group}
    try:
        only = replace(files, facts={**files.facts, "methods": of_group})
        sessions, of_sessions = _sessions(exported, of_group)
        tables = references.with_tables(group) if of_sessions else {}
        group = [tables.get(method.name, method) for method in group]
        comparison = Comparison(group, only, methods.scratch, exported.job.options.jobs, sessions)
        wrong = comparison.first_wrong(0 if tables else exported.job.plan.work)
    except (CannotRun, InputError) as error:  # the runtime's libraries may need something that this machine lacks
        of_others = error.problems if isinstance(error, InputError) else ()
        message = "; ".join(problem.message for problem in of_others) or str(error)  # its text is in no key
        notes = {**skipped, **dict.fromkeys(of_group, f"{NOT} {message}")}
        judged = [method for method in group if method.name in _calibrated(exported.job.plan)]
        if not judged:  # a file without calls would start the model for nothing
            return {"wrong": None, "notes": notes, "agreement": {}}
        found = _without_runtime(exported, methods, judged)
        return {**found, "notes": _joined(notes, found["notes"])}
    if wrong is not None:
        return {"wrong": vars(wrong), "notes": {}, "agreement": {}}
    notes = {name: f"was compared with PyTorch {what}" for name, what in comparison.notes.items()}
    notes.update(dict.fromkeys(tables, references.ONE_CALL))
    notes = _joined(of_sessions, _joined(notes, _overflows(exported.job, group)))
    if of_group.keys() & witnesses(exported.job.plan):
        notes = _joined(notes, write_calls(methods.calls, group, comparison.calls))
    return {"wrong": None, "notes": {**skipped, **notes}, "agreement": of_runtime(comparison.agreement)}


def _sessions(
    exported: ComparedMethods, methods: Mapping[str, ProgramMethod]
) -> tuple[Callable[[ProgramFiles, Path], Any], dict[str, str]]:
    """What runs methods: the runtime, or references for their delegates. Also notes about methods that these run."""
    from etplugins.runtime.session import Session

    plan = exported.job.plan
    lacking = {name: references.elsewhere(each["delegates"], plan) for name, each in methods.items()}
    if not any(lacking.values()):
        return Session, {}
    from etplugins.comparison.reference_session import ReferenceSession

    (whole, _) = exported.methods([*methods], whole=True)
    programs = {each.name: each.program for each in whole}
    notes = {
        name: f"{references.BY} {references.named(references.load(found))}: {_ELSEWHERE} {found[0]}"
        for name, found in lacking.items()
        if found
    }
    return lambda files, _: ReferenceSession(plan, programs, files), notes


def _overflows(job: LoweringJob[ComparePlan], group: Sequence[ComparedMethod]) -> dict[str, str]:
    """Notes about methods that overflow with their example inputs or a sample, and whose outputs are right."""
    from etplugins.comparison import overflow

    found: dict[str, str] = {}
    for method in filter(lambda each: each.converted, group):
        for what, leaves in (("its example inputs", method.examples), *method.samples):
            if (node := overflow.first(method.program, method.weights, leaves)) is not None:
                text = " ".join(overflow.described(node, method.name, job.export.lines).splitlines())
                found.setdefault(method.name, f"overflows with {what} in {text}")
    return found


def _without_runtime(exported: ComparedMethods, methods: Group, group: Sequence[ComparedMethod]) -> _Found:
    """Calls exported methods that the runtime here cannot run, for the comparison with the model."""
    from etplugins.comparison.compare import Comparison

    comparison = Comparison(group)
    with suppress(Exception):  # an operator may have no kernel in PyTorch either
        comparison.call_exported(exported.job.plan.work)
        notes = write_calls(methods.calls, group, comparison.calls)
        return {"wrong": None, "notes": notes, "agreement": {}}
    return {"wrong": None, "notes": {}, "agreement": {}}


def _problem(exported: ComparedMethods, wrong: Wrong, files: ProgramFiles, *, search: bool) -> Problem:
    if wrong.blames == "layout":
        return Problem(wrong.problem, ("methods", wrong.method), _ROW_BY_ROW)
    where = "the operator was searched for only in the first wrong method"
    if search:
        (method,), _ = exported.methods([wrong.method], whole=True)
        delegates = references.elsewhere(files.method(wrong.method)["delegates"], exported.job.plan)
        where = _where(exported.job, method, wrong, delegates)
    otherwise = _LEAVE_OUT if wrong.blames == "runtime" else MORE_OR_LESS
    return Problem(wrong.problem, ("methods", wrong.method), hints(where, otherwise))


def _where(job: LoweringJob[ComparePlan], method: ComparedMethod, wrong: Wrong, delegates: Sequence[str]) -> str:
    """A text for people that says where the difference begins."""
    from etbuild.inputs.source_lines import first_name, shown
    from etplugins.comparison.graph import is_quantized

    if (overflows := out_of_range(job, method, wrong, "overflow")) is not None:
        return overflows
    if wrong.overflows is not None:
        (node,) = (each for each in method.program.graph.nodes if each.name == wrong.overflows)
        line = shown(job.export.lines.of_node(method.name, first_name(node)))
        said = f"the first result that is not finite is that of `{node.target}` (node `{node.name}`)"
        return "\n".join([said, *(line or "").splitlines()])
    with job.stage(f"search `{method.name}` for the operator that is wrong"):
        from etplugins.comparison.locate import Search, WrongCall

        program, tolerance = method.program, method.settings.tolerance
        call = WrongCall(method.name, program, wrong.leaves, wrong.state, tolerance, is_quantized(program))
        try:
            return Search(job.plan, call, job.export.lines, delegates).run()
        except Exception as error:  # noqa: BLE001 - whatever happens while it searches, the program is wrong
            return f"the search for the operator failed: {summary(error)}"
