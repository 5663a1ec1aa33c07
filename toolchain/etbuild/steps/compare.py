"""Compares a program with its model and its exported methods: the runtime must compute what PyTorch computes."""

from __future__ import annotations

import functools
import sys
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from etbuild import backends
from etbuild.accelerate.lowering import accelerated
from etbuild.errors import BuildError, InputError, Problem
from etbuild.exception_text import hints, summary
from etbuild.files import writing
from etbuild.files.digests import canonical_json
from etbuild.folding import folded
from etbuild.inputs.sources import UsedSources
from etbuild.inputs.step_context import StepContext
from etbuild.plan.step_plans import ComparePlan
from etbuild.results import FileHead, LoweringFacts, ProgramFile
from etbuild.runtime import program_files
from etbuild.steps import apart
from etbuild.steps.saved_export import (
    LoweringJob,
    load_custom_ops,
    load_methods,
    open_content,
    opened_export,
    runs_code_of_others,
)

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

    from etbuild.comparison.compare import Call, ComparedMethod, Wrong
    from etbuild.comparison.eager import EagerMethod
    from etbuild.export.read_archive import Content, SavedExport
    from etbuild.runtime.program_files import ProgramFiles

RESULT = "comparison.json"
_NOT = "was not compared with PyTorch:"
_LARGEST_BYTES = 1 << 31
"""Of files and planned memory: the runtime takes as much again, beside what the build has."""
_BRANCHES = (
    "a branch on `torch.compiler.is_exporting()`, `is_compiling()` or `training`, state that only Python sees, weights "
    "that are read before they are loaded, or a factory that makes another model each time are the usual causes"
)
_SEARCHED = 2  # wrong methods: the cause is often the same, and each search lowers the method several times
_LARGE = 1 << 20  # bytes: it would take longer to read a smaller weight for each call than to keep it


@dataclass(frozen=True)
class Built:
    """What a lowering made.

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
    job: LoweringJob[ComparePlan], used: UsedSources, examples: Path, built: Built, scratch: Path, result: Path
) -> None:
    """Compares each method that the runtime here can run, and prints a note about the others.

    Args:
        job: The export, and how it was lowered.
        used: The sources that the model comes from.
        examples: The example inputs that the export saved.
        built: The program.
        scratch: An existing empty directory, for files that are only needed meanwhile.
        result: The file to write, in the form of a validation's result of Buck2.

    Raises:
        InputError: A declared input is missing or does not fit.
        BuildError: The program cannot be loaded, or computes something else. The error names the method, the output,
            and the operator where the difference begins.
    """
    left_out = _left_out(job.plan, built)
    if left_out.keys() != job.plan.methods.keys():
        left_out = _compare(job, used, examples, built, left_out, scratch)
    notes = [f"`{name}` {what}" for name, what in sorted(left_out.items())]
    for note in folded([*map(Problem, notes)]):
        print(f"note: {note}", file=sys.stderr)
    message = {"message": "\n".join(notes)} if notes else {}
    said = canonical_json({"version": 1, "data": {"status": "success", **message}})
    writing.write(result.parent, result.name, "comparison", said)


def _left_out(plan: ComparePlan, built: Built) -> dict[str, str]:
    """The methods that cannot be compared, each with what a note says."""
    found = {}
    limits = {
        limit["method"]: limit["what"]
        for limit in reversed(built.lowering["runtime_limits"])
        if not program_files.has_own_kernel(limit["operator"])
    }
    for name in plan.methods:
        method, settings = built.lowering["program"]["methods"][name], plan.comparisons[name]
        elsewhere = sorted(
            each for each in method["delegates"] if not backends.loads_everywhere(each, plan.used_backends)
        )
        if settings.leave_out is not None:
            found[name] = settings.leave_out
        elif elsewhere:
            found[name] = f"the build cannot run {elsewhere[0]}"
        elif name in limits:
            found[name] = f"the runtime here cannot run all of it: {limits[name]}"
        elif not plan.memory_planning[name].alloc_mutable_buffers:
            found[name] = "the application has the memory for its buffers"
        elif built.size + sum(method["memory"]) > _LARGEST_BYTES:
            found[name] = f"the program and its memory take more than {_LARGEST_BYTES >> 30} GB"
    return {name: f"{_NOT} {why}" for name, why in found.items()}


def _compare(
    job: LoweringJob[ComparePlan],
    used: UsedSources,
    examples: Path,
    built: Built,
    left_out: Mapping[str, str],
    scratch: Path,
) -> dict[str, str]:
    with opened_export(job, used) as (saved, context):
        wanted = [name for name in sorted(job.plan.methods) if name not in left_out]
        programs = functools.partial(_compare_programs, job, saved, context, examples, built, wanted, scratch)
        if saved.export_plan is None and not runs_code_of_others(job.plan, saved):
            exported, found = programs()
            notes = apart.run_one(functools.partial(_compare_exports, exported, found))
        else:
            notes = apart.run_one(lambda: _compare_exports(*programs()))
        return {**left_out, **notes}


def _compare_programs(
    job: LoweringJob[ComparePlan],
    saved: SavedExport,
    context: StepContext,
    examples: Path,
    built: Built,
    wanted: list[str],
    scratch: Path,
) -> tuple[_Exported, list[_Found]]:
    """Compares the program with its exported methods. Methods that share state are compared together."""
    from etbuild.comparison.compare import Wrong
    from etbuild.runtime import child

    load_custom_ops(job.plan, context)
    files, exported = built.files, _Exported.read(job, saved, context, examples)
    groups = [wanted] if files.shares_state else [[name] for name in wanted]
    with job.stage(f"compare {', '.join(wanted)}"):
        directories = [scratch / str(number) for number in range(len(groups))]
        tasks = {
            f"comparing {', '.join(names)}": functools.partial(_first_wrong, exported, names, files, directory)
            for names, directory in zip(groups, directories, strict=True)
        }
        try:
            found: list[_Found] = [*child.run(tasks, job.options.jobs).values()]
        except BuildError as error:
            raise BuildError([_explained(problem, wanted, built.lowering) for problem in error.problems]) from error
    wrong = [Wrong(**each["wrong"]) for each in found if each["wrong"] is not None]
    if wrong:
        raise BuildError([_problem(exported, each, search=number < _SEARCHED) for number, each in enumerate(wrong)])
    return exported, found


def _compare_exports(exported: _Exported, found: list[_Found]) -> dict[str, str]:
    """Compares the exported methods with the model, whose code runs in this process. Returns the notes of both
    comparisons, by method."""
    from etbuild.comparison.compare import Wrong
    from etbuild.runtime import child

    job = exported.job
    names = sorted({name for each in found for name, _, _ in each["calls"]})
    exported = replace(exported, eager=_eager_methods(job, exported.context, names)) if names else exported
    groups = [each["calls"] for each in found if any(name in exported.eager for name, _, _ in each["calls"])]
    with job.stage(f"compare {', '.join(names)} with the model") if groups else nullcontext():
        tasks = {
            f"comparing {', '.join(sorted({name for name, _, _ in calls}))} with the model": functools.partial(
                _first_wrong_export, exported, calls
            )
            for calls in groups
        }
        more: list[_Found] = [*child.run(tasks, job.options.jobs).values()]
    wrong = [Wrong(**each["wrong"]) for each in more if each["wrong"] is not None]
    if wrong:
        raise BuildError([_problem(exported, each, search=number < _SEARCHED) for number, each in enumerate(wrong)])
    notes: dict[str, str] = {}
    for name, what in (pair for each in [*found, *more] for pair in each["notes"].items()):
        notes[name] = f"{notes[name]}; it {what}" if name in notes else what
    return notes


def _explained(problem: Problem, methods: Iterable[str], lowering: LoweringFacts) -> Problem:
    """A problem with its method, if the runtime has ended the process.

    The hint names weights that are not finite: a backend may refuse them without saying so.
    """
    ended = [name for name in methods if not problem.path and f"comparing {name}" in problem.message]
    path = ("methods", ended[0]) if ended else problem.path
    weights = ", ".join(sorted(lowering["non_finite"]))
    more = f"these weights have elements that are NaN or infinite: {weights}" if weights else None
    return replace(problem, path=path, hint=hints(problem.hint, more))


def _eager_methods(job: LoweringJob[ComparePlan], context: StepContext, names: Iterable[str]) -> dict[str, EagerMethod]:
    """The methods of the model in eager PyTorch, by name. Leaves out those that come from files, and those whose
    weights a training for quantization has changed."""
    from etbuild.comparison.eager import EagerMethod
    from etbuild.model import module
    from etbuild.processes.random_seeds import seed
    from etbuild.steps.create_module import create_module

    plan = job.plan.exported
    methods = {name: plan.methods[name] for name in names}
    trained = {name for name, method in methods.items() if method.pt2e is not None and method.pt2e.qat is not None}
    wanted = {
        name: method
        for name, method in methods.items()
        if method.program is None and name not in trained and "quantize" not in method.from_recipe
    }
    if not wanted:
        return {}
    seed(plan.model.seed)  # modules may draw numbers when they are imported
    with job.stage("create the model"):
        root = create_module(plan, context, job.plan.weights, floats=True, in_place=True)
        tensors = module.named_tensors(root)
        for name, content in _of_adapters(job, tensors.keys()).items():
            tensors[name].copy_(content)

    def applied(adapter: str | None) -> AbstractContextManager[object]:
        if not plan.adapters:
            return nullcontext()
        from etbuild.model import adapters

        return adapters.applied(root, adapter)

    return {
        name: EagerMethod(root, method.entry, functools.partial(applied, method.adapter))
        for name, method in wanted.items()
    }


@dataclass(frozen=True)
class _Exported:
    """The exported methods of a program.

    Attributes:
        job: The export, and how it was lowered.
        saved: The export.
        context: What every step needs.
        examples: The example inputs that the export saved.
        content: The parameters and buffers by name, which are read when they are asked for.
        adapters: Those of adapters.
        programs: The methods, if their export is without them and they were exported again.
        eager: The methods of the model, by name. Empty until the program is compared with the exported methods.
    """

    job: LoweringJob[ComparePlan]
    saved: SavedExport
    context: StepContext
    examples: Path
    content: Content | None
    adapters: dict[str, torch.Tensor]
    programs: dict[str, ExportedProgram]
    eager: dict[str, EagerMethod] = field(default_factory=dict)

    @classmethod
    def read(cls, job: LoweringJob[ComparePlan], saved: SavedExport, context: StepContext, examples: Path) -> _Exported:
        """Opens the weights, or exports with them: once, and not in each child process."""
        if saved.export_plan is not None:
            from etbuild.steps.export import export_with_weights

            _, programs = export_with_weights(saved.export_plan, context, job.plan.weights, job.plan.adapters)
            for program in programs.values():  # the export has stand-ins for the weights of adapters: buffers
                program.constants.update(_of_adapters(job, program.constants.keys()))
            return cls(job, saved, context, examples, None, {}, programs)
        content = open_content(job, saved)
        return cls(job, saved, context, examples, content, _of_adapters(job, content.keys()), {})

    def methods(self, names: list[str], *, whole: bool = False) -> tuple[list[ComparedMethod], dict[str, str]]:
        """The methods with their weights and example inputs; and those that cannot be compared, with a note.

        Args:
            names: The names of the methods.
            whole: Whether the programs hold all of their weights. If not, large ones are read where they are needed.
        """
        from torch.export.graph_signature import OutputKind

        from etbuild.comparison.compare import ComparedMethod
        from etbuild.export import saved_examples

        methods, skipped = list[ComparedMethod](), dict[str, str]()
        large: Mapping[str, torch.Tensor] = {}
        loaded = self.programs
        if self.content is not None:
            content = self.content
            if not whole:
                large = content.only(self._large())
                content = content.only(content.keys() - large.keys())
            with accelerated() if self.job.options.accelerate else nullcontext():
                in_memory = {**content.loaded(), **self.adapters}
                loaded = load_methods(self.saved, in_memory, names)
        for name in names:
            program = loaded[name]
            leaves = (
                saved_examples.of_program(program)
                if self.programs
                else saved_examples.read(self.examples, name, program)
            )
            if any(spec.kind == OutputKind.GRADIENT_TO_PARAMETER for spec in program.graph_signature.output_specs):
                skipped[name] = f"{_NOT} it trains, and a program also returns the gradients"
            elif leaves is None:
                skipped[name] = f"{_NOT} its example inputs have a dtype that safetensors cannot hold"
            else:
                settings, eager = self.job.plan.comparisons[name], self.eager.get(name)
                methods.append(ComparedMethod(name, program, leaves, settings, large, eager))
        return methods, skipped

    def _large(self) -> set[str]:
        """The names of large weights that no method changes, and that can be read again for each call."""
        from etbuild.model.tensor_facts import first_name

        if self.saved.packing is not None:
            return set()  # to unpack them takes longer than a call
        changed = {first_name(entry) for entry in self.saved.tensors if entry.name in self.saved.written}
        return {
            entry.name
            for entry in self.saved.tensors
            if entry.nbytes >= _LARGE and first_name(entry) not in changed and entry.name not in self.adapters
        }


def _of_adapters(job: LoweringJob[ComparePlan], names: Collection[str]) -> dict[str, torch.Tensor]:
    """The weights of adapters among the names of parameters and buffers."""
    if not job.plan.adapters:
        return {}
    from etbuild.model import adapter_weights

    return adapter_weights.read(job.plan.adapters, names, job.inputs)


class _Found(TypedDict):
    """What a child process found: the fields of a wrong call; what was left out, by method; and the calls that were
    compared."""

    wrong: dict[str, Any] | None
    notes: dict[str, str]
    calls: list[Call]


def _first_wrong(exported: _Exported, names: list[str], files: ProgramFiles, scratch: Path) -> _Found:
    """The first wrong call as plain values, and what was left out. Runs in a child process: the runtime may crash."""
    from etbuild.comparison.compare import CannotRun, Comparison

    group, skipped = exported.methods(names)
    if not group:
        return {"wrong": None, "notes": skipped, "calls": []}
    of_group = {method.name: files.method(method.name) for method in group}
    scratch.mkdir()
    try:
        only = replace(files, facts={**files.facts, "methods": of_group})
        comparison = Comparison(group, only, scratch)
        wrong = comparison.first_wrong(exported.job.plan.work)
    except CannotRun as error:
        return {"wrong": None, "notes": {**skipped, **dict.fromkeys(of_group, f"{_NOT} {error}")}, "calls": []}
    except InputError as error:  # the runtime here may lack what its libraries need of the machine
        message = "; ".join(problem.message for problem in error.problems)  # the text of the error is in no key
        return {"wrong": None, "notes": {**skipped, **dict.fromkeys(of_group, f"{_NOT} {message}")}, "calls": []}
    notes = {name: f"was compared with PyTorch {what}" for name, what in comparison.notes.items()}
    found = None if wrong is None else vars(wrong)
    return {"wrong": found, "notes": {**skipped, **notes}, "calls": comparison.calls}


def _first_wrong_export(exported: _Exported, calls: list[Call]) -> _Found:
    """The first call in which an exported method differs from the model. Runs in a child process: a call changes the
    state of the model."""
    from etbuild.comparison.compare import Comparison

    group, _ = exported.methods(sorted({name for name, _, _ in calls}))
    comparison = Comparison(group)
    wrong = comparison.first_wrong_export(calls)
    notes = {name: f"was compared with the model {what}" for name, what in comparison.notes.items()}
    for name, loss in comparison.losses.items():
        notes.setdefault(name, f"is quantized: {loss} against the float model")
    return {"wrong": None if wrong is None else vars(wrong), "notes": notes, "calls": []}


def _problem(exported: _Exported, wrong: Wrong, *, search: bool) -> Problem:
    hint = "`checks.compare` can allow more, or leave the method out with a reason"
    where: str | None = f"the operator was searched for only in the first {_SEARCHED} wrong methods"
    if wrong.blames == "quantization":
        where = None
    elif search:
        (method,), _ = exported.methods([wrong.method], whole=True)
        find = _where_exported if wrong.blames == "export" else _where
        where = find(exported.job, exported.context, method, wrong)
    return Problem(wrong.problem, ("methods", wrong.method), hints(where, hint))


def _where_exported(job: LoweringJob[ComparePlan], context: StepContext, method: ComparedMethod, wrong: Wrong) -> str:
    """Where the exported method leaves the model, for people."""
    from etbuild.comparison.graph import with_state
    from etbuild.runtime import child

    eager, graph = method.eager, with_state(method.program, wrong.state)
    assert eager is not None, "the model was compared"

    def find() -> str | None:
        for _, leaves in wrong.earlier:
            eager.call(method.program, leaves)
        return eager.different_module(method.program, graph, wrong.leaves)

    with job.stage(f"search the model for what `{method.name}` exports otherwise"):
        try:
            found: str | None = child.result("the model", find)
        except Exception as error:  # noqa: BLE001 - whatever happens while it searches, the export is wrong
            return f"the search for the module failed: {summary(error)}"
    passes = "; or `passes.aten` changes what it computes" if job.plan.exported.passes else ""
    cause = f"{_BRANCHES}{passes}"
    first = "the first submodule whose output the exported method does not compute is"
    return cause if found is None else f"{first} {found}: {cause}"


def _where(job: LoweringJob[ComparePlan], context: StepContext, method: ComparedMethod, wrong: Wrong) -> str:
    """Where the difference begins, for people."""
    from etbuild.comparison.graph import is_quantized
    from etbuild.inputs.source_lines import first_name, shown

    if wrong.overflows is not None:
        (node,) = (each for each in method.program.graph.nodes if each.name == wrong.overflows)
        line = shown(job.export.lines.of_node(method.name, first_name(node)))
        said = f"the first result that is not finite is that of `{node.target}` (node `{node.name}`)"
        return "\n".join([said, *(line or "").splitlines()])
    with job.stage(f"search `{method.name}` for the operator that is wrong"):
        from etbuild.comparison.locate import Search, WrongCall

        program, tolerance = method.program, method.settings.tolerance
        call = WrongCall(method.name, program, wrong.leaves, wrong.state, tolerance, is_quantized(program))
        try:
            return Search(job.plan, call, job.export.lines).run()
        except Exception as error:  # noqa: BLE001 - whatever happens while it searches, the program is wrong
            return f"the search for the operator failed: {summary(error)}"
