"""The pipeline: the steps of a build, what each reads and writes, and how each runs.

The key of a step's files is a digest of all that it reads. If the cache has that key, the step does not run. The verbs
of the build rules call the same functions as the steps here, and have a build system in place of the cache.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, TypeVar

from etbuild import backends, notes, plugins
from etbuild.errors import DocumentPath, EtbuildError, InputError
from etbuild.export.kept_weights import KeptWeights
from etbuild.export.layout import (
    CONSTANT_TENSORS,
    CONSTANTS,
    EXAMPLES,
    LINES,
    MADE,
    METHODS,
    NOTES,
    WRITTEN,
    ExportFiles,
)
from etbuild.files import safetensors_header
from etbuild.files.digests import digest, file_digest
from etbuild.files.writing import Artifact
from etbuild.inputs.step_context import Stage, Watch, silent
from etbuild.key import code
from etbuild.key.declared import Inputs
from etbuild.key.distributions import environment
from etbuild.key.import_graph import used_sources
from etbuild.key.key import KeyFiles, describe
from etbuild.key.toolchain import toolchain
from etbuild.plan.plan import Plan
from etbuild.plan.step_plans import ExportPlan, LowerPlan, MethodPlan
from etbuild.publishing.artifacts import scratch_in
from etbuild.steps.lowering_options import LoweringOptions
from etbuild.steps.one_by_one import KeptMethods
from etkit.local import snapshot
from etkit.local.shared_imports import begins_with_transformers, import_transformers

if TYPE_CHECKING:
    from etbuild.results import KeyInputs, LoweringFacts
    from etbuild.steps.saved_export import LoweringJob
    from etkit.local.cache.store import Cache

P = TypeVar("P", bound=LowerPlan)
StepPlan = ExportPlan | MethodPlan | Plan
"""A plan of one step, or of all."""


class Comparison(Protocol):
    """The comparison of a program with its model, which a plug-in provides as the step `compare`.

    It is made with a function that returns the job, the sources of the model, and the file of the example inputs that
    the export saves. It may have its own process, which makes the model. The job may change until the comparison runs.
    """

    def start(self) -> None:
        """Starts its process, unless it runs, early: importing what a model needs takes long."""

    def run(
        self, directory: Path, lowering: LoweringFacts, scratch: Path, result: Path, known: KnownComparisons | None
    ) -> None:
        """Compares, and ends its process. Writes figures for people beside the result, as `agreement.json`.

        Args:
            directory: The directory of the program and its named data.
            lowering: The facts of the lowering.
            scratch: An existing empty directory, which the process may read.
            result: The file to write, in the form of a validation's result of Buck2.
            known: Where results of methods are kept. None: nowhere.

        Raises:
            InputError: A declared input is missing or does not fit.
            BuildError: The program cannot be loaded, or computes something else.
        """

    def close(self) -> None:
        """Ends its process, if it runs."""


class _NoPythonInterface:
    """Makes an import of the Python interface fail, so that no model builds with it while a step runs."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        """Finds nothing: other finders do."""
        if name == "etkit.local.interface":
            raise InputError.of("a model cannot use the Python interface of `etbuild`", "build with it elsewhere")


@contextmanager
def _without_python_interface() -> Iterator[None]:
    finder = _NoPythonInterface()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


@dataclass(frozen=True)
class Request:
    """What to build, and everything that it depends on.

    Attributes:
        plan: The plan.
        files: The sources and the data.
        described: What the key is made from.
        environment: A digest of all installed packages. The local cache keeps separate results for each.
        began: When the build began, in ns.
    """

    plan: Plan
    files: KeyFiles
    described: KeyInputs
    environment: str
    began: int

    @classmethod
    def read(cls, plan: Plan, inputs: Inputs) -> Request:
        """Finds and digests the files.

        Raises:
            InputError: A file is missing or cannot be read, or the version of a package is unknown.
        """
        began = time.time_ns()
        files = KeyFiles.read(inputs, used_sources(inputs, plan.export_plan), plan.data_names)
        return cls(plan, files, describe(plan, files.digests), environment(), began)

    def of_one_moment(self, directory: Path) -> Request:
        """The same request with copies of those checkpoints that may change during the build, in a directory. Errors
        are those of `read` and of `snapshot.copied`."""
        inputs = snapshot.copied(self.files.inputs, self.files.checkpoints, directory / "inputs")
        if inputs is None:
            return self
        files = replace(self.files, inputs=inputs)
        return replace(self, files=files) if files.is_unchanged() else Request.read(self.plan, inputs)

    @property
    def key(self) -> str:
        """The key of the program."""
        return digest(self.described)

    def code_of(self, step: str) -> str:
        """The digest of the driver's code that a step runs for this program."""
        return code.digest_of(step, self.plan.plugins_of(step))


@dataclass(frozen=True)
class Step:
    """A step of a build.

    Attributes:
        name: Its name.
        plan: Returns the part of the plan that it reads. This part names the data that the step reads.
        reads: Returns what else it reads, as items of its key.
        writes: The directory for what it writes.
        run: Runs it.
        schema: The schema of its key. None: the step is quick, so it has no key and always runs.
    """

    name: str
    plan: Callable[[Plan], StepPlan]
    reads: Callable[[Pipeline], Mapping[str, object]]
    writes: str
    run: Callable[[Pipeline], None]
    schema: str | None


class Pipeline:
    """Runs the steps of one build. Each reads directories that earlier steps have written.

    Attributes:
        methods: `run` or `cached` for each method, if methods were lowered one by one with a cache.
        comparisons: For each compared method, what it was compared with in this build: `runtime` and the model,
            `model`, or nothing, since all is known: `cached`. Empty without a cache.
        artifacts: The program, its named data, the tokenizer, the report and the index. Empty until the last step.
    """

    def __init__(
        self, request: Request, directory: Path, stage: Stage, options: LoweringOptions, cache: Cache | None
    ) -> None:
        """Args:
        request: What to build.
        directory: An existing directory for the directories of the steps.
        stage: Is called for each stage, to show progress.
        options: How lowering runs.
        cache: Keeps what the steps write. None: nothing is kept after the build.
        """
        self.request, self.directory, self.stage, self.options, self.cache = request, directory, stage, options, cache
        self.methods: dict[str, str] = {}
        self.comparisons: dict[str, str] = {}
        self.artifacts: list[Artifact] = []

    @property
    def export(self) -> ExportFiles:
        """The files of the export."""
        return ExportFiles.below(self.directory / "export")

    @property
    def program(self) -> Path:
        """The directory of the program."""
        return self.directory / "program"

    @cached_property
    def lowering(self) -> LoweringFacts:
        """The facts of the lowering."""
        from etbuild.steps import facts

        return facts.read_lowering(self.program / f"{self.request.plan.name}.lowering.json")

    @property
    def compared(self) -> Path:
        """The result of the comparison."""
        return self.directory / "comparison" / "comparison.json"

    @property
    def agreement(self) -> Path:
        """The figures of the comparison; no file if no method was compared."""
        return self.compared.with_name("agreement.json")

    def run(self, step: Step) -> str:
        """Runs a step, or takes what it writes from the cache, and prints its notes. Returns `run` or `cached`."""
        how = self._written(step)
        if step.name == "compare":
            notes.show_of_comparison(self.compared)
        return how

    def _written(self, step: Step) -> str:
        directory = self.directory / step.writes
        directory.mkdir(exist_ok=True)
        if self.cache is None or step.schema is None:
            self._run(step)
            return "run"
        key = self.key(step.schema, step.name, step.plan(self.request.plan), step.reads(self))
        fetched = step.name == "export" or self.options.accelerate  # without the switches, lowering has to run
        if fetched and self.cache.fetch(step.name, key, directory) is not None:
            return "cached"
        with self.cache.building(step.name, key):
            if fetched and self.cache.fetch(step.name, key, directory) is not None:
                return "cached"
            with self.stored(step.name, {key: directory}):
                self._run(step)
        return "run"

    def _run(self, step: Step) -> None:
        """Runs a step."""
        if step.schema is None:
            step.run(self)
            return
        try:
            with _without_python_interface():
                step.run(self)
        except EtbuildError:
            self.request.files.check_unchanged()  # changed data may be the cause of the failure
            raise
        self.request.files.check_unchanged()

    @cached_property
    def comparison(self) -> Comparison:
        """The comparison. The export or the lowering starts its process, if a processor is free."""
        job, used = partial(self.job, self.request.plan.compare_plan), self.request.files.used
        comparison: Comparison = plugins.load("step", "compare")(job, used, self.export.directory / EXAMPLES)
        return comparison

    def close(self) -> None:
        """Ends processes that still run."""
        if "comparison" in vars(self):
            self.comparison.close()

    def key(self, schema: str, step: str, plan: StepPlan, reads: Mapping[str, object]) -> str:
        """The key of what a step writes: a part of the plan, the data that it names, the driver, and the toolchain."""
        described = self.request.described
        return digest(
            {
                "schema": schema,
                "environment": self.request.environment,
                "plan": plan.to_json(),
                "data": {name: described["data"][name] for name in self.data(plan)},
                "driver": self.request.code_of(step),
                "toolchain": {key: value for key, value in described["toolchain"].items() if key != "driver"},
                **reads,
            }
        )

    def data(self, plan: StepPlan) -> dict[str, DocumentPath]:
        """The data that a step reads: all data if later steps export the methods again."""
        return self.request.files.data(None if self.export.needs_reexport else plan.data_names)

    def job(self, plan: P) -> LoweringJob[P]:
        """The inputs and options of lowering or comparing."""
        from etbuild.steps.saved_export import LoweringJob

        inputs = self.request.files.inputs.only(self.data(plan))
        return LoweringJob(plan, self.export, inputs, self.stage, self.watch, self.options, self._computed)

    @property
    def kept(self) -> KeptMethods | None:
        """Where lowered methods are kept; None without a cache."""
        return None if self.cache is None else _CachedMethods(self, self.cache)

    @property
    def watch(self) -> Watch:
        """Refuses reads of the sources that no key covers. The driver itself may read the cache."""
        from etbuild.guard.reads import watched_reads

        return partial(watched_reads, given=[] if self.cache is None else [self.cache.directory])

    @property
    def _computed(self) -> KeptWeights:
        """The places for weights that are computed from other weights: a file of this build, and for slow ones the
        cache. They depend only on the weight and the code that computes them."""
        file, cache = self.directory / "computed" / "weights.safetensors", self.cache
        request = self.request
        if cache is None:
            return KeptWeights(file, scratch_in)

        def key(content: Mapping[str, object]) -> str:
            packages = {key: value for key, value in request.described["toolchain"].items() if key != "driver"}
            runs = {"driver": request.code_of("lower"), "toolchain": packages, "environment": request.environment}
            return digest({"schema": "executorch-quantized-key/v1", **runs, **content})

        return KeptWeights(
            file,
            scratch_in,
            lambda content, into: cache.fetch("quantized", key(content), into) is not None,
            lambda content, path, name: cache.store("quantized", key(content), path, [name]),
        )

    @contextmanager
    def stored(self, step: str, directories: Mapping[str, Path]) -> Iterator[None]:
        """Stores files written to the directories of some keys within this context, unless keys miss what they need.

        Raises:
            BuildError: A file has changed since the build began.
        """
        from etbuild.guard.reads import unkeyed

        assert self.cache is not None
        with unkeyed() as reasons:
            yield
        self.request.files.check_unchanged()
        for key, directory in directories.items() if not reasons else ():
            self.cache.store(step, key, directory, files_below(directory))


class _CachedMethods(KeptMethods):
    """Keeps each method in the cache. Its key leaves out other methods and the constants of the export. Without the
    content of weights, it also leaves out the checkpoints and the factory's tensors."""

    def __init__(self, pipeline: Pipeline, cache: Cache) -> None:
        self._pipeline, self._cache = pipeline, cache

    def fetch(self, name: str, directory: Path, *, weights: bool) -> bool:
        """Takes a method from the cache."""
        found = self._cache.fetch("method", self._key(name, weights), directory) is not None
        ran = not found or self._pipeline.methods.get(name) == "run"  # some are lowered with and without weights
        self._pipeline.methods[name] = "run" if ran else "cached"
        return found

    def keep(self, directories: Mapping[str, Path], *, weights: bool) -> AbstractContextManager[None]:
        """Stores methods."""
        return self._pipeline.stored("method", {self._key(name, weights): path for name, path in directories.items()})

    def _key(self, name: str, weights: bool) -> str:
        """The key of a method. It holds which buffers other methods write to only if methods share buffers."""
        plan = self._pipeline.request.plan
        others = {f"{METHODS}/{other}.pt2" for other in plan.methods if other != name}
        others |= {CONSTANTS, CONSTANT_TENSORS, NOTES, *([] if plan.share_mutable_buffers else [WRITTEN])}
        of_method = plan.lower_plan.of_method(name)
        if not weights:
            of_method = of_method.without_weights
            others |= set() if plan.lower_plan.adapters else {MADE}
        reads = _exported(self._pipeline, {LINES, EXAMPLES, *others})
        schema = "executorch-method-key/v1" if weights else "executorch-template-key/v1"
        return self._pipeline.key(schema, "lower", of_method, reads)


class KnownComparisons:
    """Keeps in the cache what comparing methods has found.

    A key leaves out other methods and the constants of the export. The sources of the model are in it only if they
    decide the result: an exported method has them no more.

    Args:
        pipeline: The build.
        cache: Its cache.

    Attributes:
        found: The directories of results to keep, by key.
    """

    def __init__(self, pipeline: Pipeline, cache: Cache) -> None:
        self._pipeline, self._cache = pipeline, cache
        self.found: dict[str, Path] = {}

    def fetch(self, plan: LowerPlan, part: str, program: str, directory: Path, *, sources: bool) -> bool:
        """Fills an empty directory with a result of some methods. Returns False if it is unknown.

        Args:
            plan: The plan for comparing them by themselves. They are compared together.
            part: What they were compared with: `runtime` or `model`.
            program: The digest of their part of the program.
            directory: The directory.
            sources: Whether the sources of the model decide the result.
        """
        accelerates = self._pipeline.options.accelerate  # without the switches, everything is compared
        key = self._key(plan, part, program, sources)
        is_known = accelerates and self._cache.fetch("compared", key, directory) is not None
        if is_known or part == "runtime":
            left = ("cached" if part == "model" else "model") if is_known else "runtime"
            self._pipeline.comparisons.update(dict.fromkeys(plan.methods, left))
        return is_known

    def keep(self, plan: LowerPlan, part: str, program: str, directory: Path, *, sources: bool) -> None:
        """Keeps the files in a directory as a result, if the build goes on without an error. The arguments are those of
        `fetch`."""
        self.found[self._key(plan, part, program, sources)] = directory

    def _key(self, plan: LowerPlan, part: str, program: str, sources: bool) -> str:
        run = self._pipeline
        others = {f"{METHODS}/{other}.pt2" for other in run.request.plan.methods if other not in plan.methods}
        reads = {
            **_exported(run, {LINES, NOTES, EXAMPLES, CONSTANTS, CONSTANT_TENSORS, *others}),
            **({"sources": run.request.described["sources"]} if sources else {}),
            "examples": _examples(run.export.directory / EXAMPLES, plan.methods),
            "program": program,
            "part": part,
        }
        return run.key("executorch-compared-key/v1", "compare", plan, reads)


def _examples(path: Path, names: Collection[str]) -> dict[str, object]:
    """The dtypes, the shapes and the digests of the example inputs of methods."""
    if not path.exists():
        return {}
    with path.open("rb") as file:
        header, start = safetensors_header.read(file)
        found: dict[str, object] = {}
        for name, entry in sorted(header.items()):
            if name.partition("/")[0] in names:
                begin, end = entry["data_offsets"]
                file.seek(start + begin)
                found[name] = [entry["dtype"], entry["shape"], hashlib.sha256(file.read(end - begin)).hexdigest()]
        return found


def files_below(directory: Path) -> list[str]:
    """The files below a directory, by their paths in it, sorted."""
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())


def _exported(run: Pipeline, left_out: Collection[str]) -> dict[str, object]:
    """The files of the export, except those left out."""
    directory = run.export.directory
    return {"export": {name: file_digest(directory / name) for name in files_below(directory) if name not in left_out}}


def _sources(run: Pipeline) -> dict[str, object]:
    """The sources and the toolchain, without parts that only lowering needs. So variants for several backends share an
    export."""
    needed = backends.distributions(run.request.plan.export_backends)
    packages = run.request.files.used.packages
    return {"sources": run.request.described["sources"], "toolchain": toolchain(packages, needed)}


def _compared(run: Pipeline) -> dict[str, object]:
    """The program, the export with its example inputs, and the sources of the model."""
    lowering = run.lowering
    return {
        **_exported(run, {LINES, NOTES}),
        "sources": run.request.described["sources"],
        "program": [artifact["sha256"] for artifact in lowering["artifacts"]],
        "facts": [lowering["program"], lowering["runtime_limits"], lowering["non_finite"]],
    }


def _export(run: Pipeline) -> None:
    """Exports. Meanwhile, this process imports the packages for lowering, and another one makes the model to
    compare."""
    from etbuild.steps.executorch_imports import imports_of_executorch
    from etbuild.steps.export import export

    request = run.request
    imports = [*imports_of_executorch(run.options)]
    if begins_with_transformers(request.plan.export_plan, request.files.used):
        import_transformers(run.stage)
    elif request.plan.model.huggingface is not None:  # the comparison makes the model, too
        imports.append(partial(import_transformers, silent))
    if request.plan.export_backends:  # quantizers need ExecuTorch too
        with run.stage("import ExecuTorch"):
            for part in imports:
                part()
    if request.plan.compare_plan.weights or request.plan.export_plan.weights:
        # If the model has no files, it is unknown yet how much memory a second one takes.
        imports.append(run.comparison.start)
    plan, meanwhile = request.plan.export_plan, imports if run.options.jobs > 1 else []
    inputs = request.files.inputs.only(run.data(plan))
    export(plan, inputs, request.files.used, run.export.directory, run.stage, run.watch, meanwhile)
    if run.export.needs_reexport:  # the model's process may need the code of exports
        run.comparison.close()


def _lower(run: Pipeline) -> None:
    """Lowers, with the methods of the cache."""
    from etbuild.steps.lower import Lowering

    directory, plan = run.directory / "methods", run.request.plan.lower_plan
    directory.mkdir()
    if run.options.jobs > 1:  # importing what a model needs takes long
        run.comparison.start()
    Lowering(run.job(plan), run.program, directory).run(run.kept)


def _compare(run: Pipeline) -> None:
    """Compares the program with its model."""
    scratch = run.directory / "compared"  # the model's process may read this directory
    scratch.mkdir()
    if run.cache is None:
        run.comparison.run(run.program, run.lowering, scratch, run.compared, None)
        return
    known = KnownComparisons(run, run.cache)
    with run.stored("compared", known.found):
        run.comparison.run(run.program, run.lowering, scratch, run.compared, known)


def _report(run: Pipeline) -> None:
    """Checks the program, and describes it."""
    from etbuild.steps import report

    request = run.request
    with run.stage("check and report"):
        reported = report.check_and_report(
            request.plan, request.described, run.lowering, request.files.inputs, run.program, run.export.lines
        )
    lowered = [Artifact(run.program, **facts) for facts in run.lowering["artifacts"]]
    run.artifacts = [*lowered, *reported]


# Line numbers are only for messages, and example inputs only for the comparison.
STEPS = (
    Step(
        "export",
        plan=lambda plan: plan.export_plan,
        reads=_sources,
        writes="export",
        run=_export,
        schema="executorch-export-key/v1",
    ),
    Step(
        "lower",
        plan=lambda plan: plan.lower_plan,
        reads=lambda run: _exported(run, {LINES, EXAMPLES}),
        writes="program",
        run=_lower,
        schema="executorch-lower-key/v1",
    ),
    Step(
        "compare",
        plan=lambda plan: plan.compare_plan,
        reads=_compared,
        writes="comparison",
        run=_compare,
        schema="executorch-compare-key/v4",
    ),
    Step("report", plan=lambda plan: plan, reads=lambda run: {}, writes="program", run=_report, schema=None),
)
