"""Builds on one machine: export, lower, compare and report. A step whose inputs did not change comes from the cache."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from etbuild import backends
from etbuild.errors import BuildError, DocumentPath, InputError
from etbuild.export.layout import CONSTANT_TENSORS, CONSTANTS, EXAMPLES, LINES, METHODS, WRITTEN, ExportFiles
from etbuild.files.artifacts import Artifact, publish, staging
from etbuild.files.digests import digest, file_digest, hashed_once
from etbuild.inputs import checked_files, step_files
from etbuild.inputs.checkpoints import each_with_shards
from etbuild.inputs.declared import Inputs
from etbuild.inputs.distributions import environment
from etbuild.inputs.import_graph import UsedSources, used_sources
from etbuild.inputs.key import check_unchanged, describe, describe_files
from etbuild.inputs.step_context import Stage
from etbuild.inputs.toolchain import toolchain
from etbuild.plan.plan import Plan
from etbuild.plan.step_plans import ComparePlan, ExportPlan, LowerPlan
from etbuild.report import tokenizer
from etbuild.steps.resources import Effort

if TYPE_CHECKING:
    from etbuild.cache.store import Cache
    from etbuild.inputs.source_lines import SourceLines
    from etbuild.results import KeyInputs, LoweringFacts, Python
    from etbuild.steps.saved_export import Lowering

P = TypeVar("P", LowerPlan, ComparePlan)


_CHECKED = "checked.files.json"  # is in the cache beside the artifacts


@dataclass(frozen=True)
class BuildResult:
    """The result of a successful build.

    Attributes:
        key: The key of the program.
        artifacts: The program, the named data, the tokenizer, the report, the index, and the page and the ETRecords if
            they were asked for.
        steps: For each step, whether it ran: `run` or `cached`.
        methods: The same for each method, if methods were lowered one by one.
    """

    key: str
    artifacts: list[Artifact]
    steps: dict[str, str]
    methods: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class FirstBuild:
    """What the first build made.

    Attributes:
        artifacts: The program, its named data and the facts about them: files, and directories of shards.
        export: The directory of the export.
        exported: The files of exported methods outside of that directory, by name.
        lowered: The directory of each method that was lowered by itself, by name.
        lines: The lines of the sources, if they are outside of the export.
        examples: The example inputs, if they are outside of the export.
        inputs: The digests of what the export read, if they were written.
    """

    artifacts: Sequence[Path]
    export: Path
    exported: Mapping[str, Path] = field(default_factory=dict)
    lowered: Mapping[str, Path] = field(default_factory=dict)
    lines: Path | None = None
    examples: Path | None = None
    inputs: Path | None = None


Verify = Callable[[ExportPlan, LowerPlan, Inputs, UsedSources, FirstBuild], None]


@dataclass(frozen=True)
class BuildOptions:
    """Where and how a build runs. They do not change what it makes.

    Attributes:
        stage: Is called for each stage, to show progress.
        cache: The cache for results; None to build without one.
        restart: Is called before the first step runs. It runs the command in fixed surroundings, unless this process
            already has them.
        effort: How lowering runs.
        verify: Builds a second time without the cache, and compares with the first build. None: nothing does.
        write_page: Writes the HTML page of the program beside the report and the index. Gets their directory, the name
            of the program, the facts of the lowering, and the lines of the sources. None: there is no page.
        etrecord: Also write an ETRecord of each method.
        origins: A directory that also receives `NAME.lowering.json` and `NAME.export.lines.json`: they say where the
            instructions of the program come from.
    """

    stage: Stage
    cache: Cache | None = None
    restart: Callable[[], None] = lambda: None
    effort: Effort = field(default_factory=Effort)
    verify: Verify | None = None
    write_page: Callable[[Path, str, LoweringFacts, SourceLines], Artifact] | None = None
    etrecord: bool = False
    origins: Path | None = None

    @property
    def needs_steps(self) -> bool:
        """Whether the build needs what the steps wrote, and not only the program. The cache has that for each step."""
        return self.write_page is not None or self.origins is not None or self.etrecord


@dataclass(frozen=True)
class _Request:
    """What to build, and everything that it depends on.

    Attributes:
        plan: The plan.
        inputs: The declared inputs.
        used: The sources.
        files: For each name in the plan, the names of its files when the build began. A download may add files later.
        described: What the key is made from.
        environment: A digest of all installed packages. The local cache keeps results apart by it.
        began: When the build began, in ns.
    """

    plan: Plan
    inputs: Inputs
    used: UsedSources
    files: Mapping[str, tuple[str, ...]]
    described: KeyInputs
    environment: str
    began: int

    @staticmethod
    def read(plan: Plan, inputs: Inputs, used: UsedSources) -> _Request:
        """Finds and digests the files.

        Raises:
            InputError: A file is missing or cannot be read, or the version of a package is unknown.
        """
        began = time.time_ns()
        files = each_with_shards(plan.data_names, inputs)
        data = {file: place for name, place in plan.data_names.items() for file in files[name]}
        read = describe_files(inputs, used, {**dict.fromkeys(inputs.data, ("model",)), **data})
        return _Request(plan, inputs, used, files, describe(plan, read), environment(), began)

    @property
    def key(self) -> str:
        return digest(self.described)

    @property
    def checked_by(self) -> str:
        """What a program in the cache was checked with: all installed packages, and the code that compared it."""
        return digest([self.environment, self.compare_driver])

    @property
    def compare_driver(self) -> str:
        """The digest of the driver's files that compare this program."""
        return step_files.digest_of(["compare"], self.plan.driver_parts("compare"))

    @property
    def python(self) -> Python:
        """The toolchain without the driver."""
        return {key: value for key, value in self.described["toolchain"].items() if key != "driver"}  # type: ignore[return-value]

    def driver_of(self, *steps: str) -> list[str]:
        """The digests of the driver's files that these steps run for this program."""
        return [self.described["toolchain"]["driver"]["steps"][step] for step in steps]

    @property
    def beside(self) -> dict[str, DocumentPath]:
        """The declared data that the plan does not name, by name. Every step may read it."""
        named = self.data(self.plan.data_names)
        return {name: ("model",) for name in self.inputs.data if name not in named}

    def data(self, names: Mapping[str, DocumentPath]) -> dict[str, DocumentPath]:
        """The files that some names of the plan stand for, each with the place in the manifest."""
        return {file: place for name, place in names.items() for file in self.files[name]}

    @property
    def all_data(self) -> dict[str, DocumentPath]:
        """All data in the key."""
        return {**self.beside, **self.data(self.plan.data_names)}

    def check_unchanged(self) -> None:
        """Checks that no source and no data file has changed since the build began.

        Raises:
            BuildError: A file has changed, or a checkpoint has other files.
        """
        check_unchanged(self.described, self.inputs, self.used, self.all_data)
        for name, place in self.plan.data_names.items():
            try:
                now = each_with_shards({name: place}, self.inputs)[name]
            except InputError:
                now = ()
            if now != self.files[name]:
                raise BuildError.of(f"the files of `{name}` changed during the build", "build again")


@hashed_once()
def build(plan: Plan, inputs: Inputs, directory: Path, options: BuildOptions) -> BuildResult:
    """Builds a program, or takes it from the cache.

    Args:
        plan: What to build.
        inputs: The declared inputs. The build reads no other files.
        directory: The directory for `NAME.pte`, `NAME.TAG.ptd`, `NAME.tokenizer`, `NAME.report.json` and
            `NAME.index.json`. They appear there when all of them are written and checked.
        options: Where and how the build runs.

    Raises:
        InputError: A declared input is missing or does not fit, or a package that a backend needs is not installed.
        BuildError: The model cannot be exported, lowered or written.
        CheckError: The program breaks a limit of the manifest's `checks`.
    """
    cache = options.cache
    plan.check_backends()
    with options.stage("read the inputs"):
        tokenizer.check_files(plan, inputs)
        used = used_sources(inputs, plan.export_plan)
        request = _Request.read(plan, inputs, used)
    # A caller who changes how lowering runs wants lowering to run.
    if cache is None or options.verify is not None or not options.effort.accelerate or options.needs_steps:
        options.restart()
        return _build(request, directory, options)
    cached = _cached(request, directory, options.stage, cache)
    if cached is None:
        options.restart()
        with cache.building("program", request.key):
            cached = _cached(request, directory, options.stage, cache)
            cached = cached or _build(request, directory, options)
    return cached


def _cached(request: _Request, directory: Path, stage: Stage, cache: Cache) -> BuildResult | None:
    with staging(directory) as staged:
        with stage("look into the cache"):
            names = cache.fetch("program", request.key, staged)
            if names is None or _CHECKED not in names:
                return None
            if not checked_files.check(staged / _CHECKED, request.checked_by, request.used.packages):
                return None
        name = f"{request.plan.name}.index.json"
        index = staged / name
        artifacts = [Artifact(staged, **facts) for facts in json.loads(index.read_bytes())["artifacts"]]
        artifacts.append(Artifact(staged, name, "index", index.stat().st_size, file_digest(index)))
        if {artifact.file for artifact in artifacts} != {*names} - {
            _CHECKED
        }:  # another file would be moved to the user's
            message = f"the cache entry {request.key[:16]} has other files than its index lists"
            raise BuildError.of(message, "build with `--no-cache`, and delete the cache")
        return BuildResult(request.key, publish(artifacts, directory), {"program": "cached"})


def _verify(verify: Verify, request: _Request, export: Path, lowered: list[Artifact], methods: Path) -> None:
    """Builds a second time, and compares.

    Args:
        verify: Does it.
        request: What to build.
        export: The directory of the export.
        lowered: The artifacts that lowering made.
        methods: A directory with the methods that were lowered one by one.
    """
    paths = {artifact.directory / artifact.file.partition("/")[0] for artifact in lowered}
    one_by_one = {path.name: path for path in sorted(methods.iterdir())}
    plan = request.plan
    first = FirstBuild(sorted(paths), export, lowered=one_by_one)
    verify(plan.export_plan, plan.lower_plan, request.inputs, request.used, first)


def _build(request: _Request, directory: Path, options: BuildOptions) -> BuildResult:
    plan, name, stage = request.plan, request.plan.name, options.stage
    from etbuild.inputs.undeclared import unkeyed
    from etbuild.processes import forked

    forked.loaded.clear()  # what an earlier build of this process has imported
    # A comparison of two builds needs two builds, so the cache must not replace one.
    steps = _Steps(request, replace(options, cache=None) if options.verify is not None else options)
    with staging(directory) as staged, unkeyed() as unknown:
        done = {"export": steps.export(staged / "export")}
        methods: dict[str, str] = {}
        kept = staged / "methods" if options.verify is not None else None
        done["lower"] = steps.lower(staged / "export", staged / "program", methods, kept)
        from etbuild.steps import facts, report

        program_directory = staged / "program"
        lowering = facts.read_lowering(program_directory / f"{name}.lowering.json")
        done["compare"] = steps.compare(staged / "export", lowering, program_directory, staged / "comparison")
        with stage("check and report"):
            lowered = [Artifact(program_directory, **facts) for facts in lowering["artifacts"]]
            lines = ExportFiles.below(staged / "export").lines
            reported = report.check_and_report(
                plan, request.described, lowering, request.inputs, program_directory, lines
            )
            artifacts = [*lowered, *reported]
        if options.verify is not None:
            with stage("build again and compare"):
                _verify(options.verify, request, staged / "export", lowered, staged / "methods")
        if options.cache is not None and not unknown:
            whole = "cached" not in {*done.values(), *methods.values()}
            checked = program_directory / _CHECKED
            checked_files.record(checked, request.checked_by, request.used.packages, whole, request.began)
            names = [*(artifact.file for artifact in artifacts), _CHECKED]
            options.cache.store("program", request.key, program_directory, names)
        if options.origins is not None:
            from etbuild.steps.facts import write_json

            write_json(options.origins, name, "lowering", lowering)
            write_json(options.origins, name, "export.lines", lines.to_json())
        if options.etrecord:
            from etbuild.steps import etrecord

            found = etrecord.etrecords(
                steps.lowering(staged / "export"), lines, program_directory / f"{name}.pte", staged
            )
            artifacts[-1:-1] = etrecord.write(program_directory, found, f"{name}.etrecord")  # the index stays last
        if options.write_page is not None:
            with stage("make the page"):
                artifacts.insert(-1, options.write_page(program_directory, name, lowering, lines))
        return BuildResult(request.key, publish(artifacts, directory), {**done, "report": "run"}, methods)


class _Steps:
    """The steps that take time. Each comes from the cache if its inputs are the same as before."""

    def __init__(self, request: _Request, options: BuildOptions) -> None:
        self.request = request
        self.cache = options.cache
        self.stage = options.stage
        self.effort = options.effort

    def export(self, directory: Path) -> str:
        """Exports into a new directory. Returns `run` or `cached`."""
        from etbuild.steps.executorch_imports import imports_of_executorch  # also for lowering, while a fork exports
        from etbuild.steps.export import export

        plan, used = self.request.plan.export_plan, self.request.used
        inputs = self.request.inputs.only(_export_data(self.request))

        def run() -> None:
            imports = [step_files.for_later_steps()(part) for part in imports_of_executorch(self.effort)]
            meanwhile = imports if self.effort.jobs > 1 else []
            if self.request.plan.export_backends:  # quantizers need ExecuTorch too
                with self.stage("import ExecuTorch"):
                    for part in imports:
                        part()
            export(plan, inputs, used, directory, self.stage, meanwhile)

        return self._step("export", _export_key(self.request), directory, self._only(run, "export"))

    def lower(self, exported: Path, directory: Path, methods: dict[str, str], kept: Path | None) -> str:
        """Lowers into a new directory. Returns `run` or `cached`.

        Args:
            exported: The directory of the export's files.
            directory: The directory to make.
            methods: Receives `run` or `cached` for each method, if the methods are lowered one by one.
            kept: A directory to make for these methods; None to keep none of them.
        """
        from etbuild.steps import lower

        plan = self.request.plan.lower_plan

        def run() -> None:
            what = self.lowering(exported)
            if kept is not None:
                kept.mkdir()
                self._lower_and_keep(what, directory, kept)
            elif self.cache is not None and self.effort.accelerate and lower.separable(plan, what.export):
                self._lower_one_by_one(what, directory, methods)
            else:
                lower.lower(what, directory)

        run = self._only(run, "lower", *_exporting(exported))
        return self._step("lower", _lower_key(self.request, exported), directory, run)

    def compare(self, exported: Path, lowering: LoweringFacts, program: Path, directory: Path) -> str:
        """Compares the program with its exported methods. Returns `run` or `cached`.

        Args:
            exported: The directory of the export's files.
            lowering: The facts of the lowering.
            program: The directory of the program.
            directory: The directory to make, for which methods were left out.
        """

        def run() -> None:
            from etbuild.steps.compare import RESULT, Built, compare

            job = self._job(self.request.plan.compare_plan, exported)
            compare(job, exported / EXAMPLES, Built.below(program, lowering), directory / RESULT)

        run = self._only(run, "compare", *_exporting(exported))
        return self._step("compare", _compare_key(self.request, exported, lowering), directory, run)

    def lowering(self, exported: Path) -> Lowering[LowerPlan]:
        """What to lower, and how, with the export in a directory."""
        return self._job(self.request.plan.lower_plan, exported)

    def _job(self, plan: P, exported: Path) -> Lowering[P]:
        from etbuild.steps.saved_export import Lowering

        inputs = self.request.inputs.only(_lower_data(self.request, exported))
        return Lowering(plan, ExportFiles.below(exported), inputs, self.stage, self.effort)

    def _lower_one_by_one(self, what: Lowering[LowerPlan], directory: Path, methods: dict[str, str]) -> None:
        """Takes methods from the cache, lowers the others, and merges all of them."""
        from etbuild.inputs.undeclared import unkeyed
        from etbuild.steps import lower

        assert self.cache is not None
        with staging(directory) as staged:
            directories = {name: staged / name for name in what.plan.methods}
            keys = {name: _method_key(self.request, what.export.directory, name) for name in directories}
            for name, path in directories.items():
                path.mkdir()
                methods[name] = "run" if self.cache.fetch("method", keys[name], path) is None else "cached"
            missing = {name: directories[name] for name, how in methods.items() if how == "run"}
            if missing:
                with unkeyed() as unknown:
                    lower.lower_methods(what, missing)
                self.request.check_unchanged()
                if not unknown:
                    for name, path in missing.items():
                        self.cache.store("method", keys[name], path, _files_below(path))
            lower.merge(what, directories, directory)

    def _lower_and_keep(self, what: Lowering[LowerPlan], directory: Path, kept: Path) -> None:
        """Lowers methods one by one, if there are several and that gives the same program, and keeps each of them."""
        from etbuild.steps import lower

        if len(what.plan.methods) == 1 or not self.effort.accelerate or not lower.separable(what.plan, what.export):
            lower.lower(what, directory)
            return
        methods = {name: kept / name for name in what.plan.methods}
        for path in methods.values():
            path.mkdir()
        lower.lower_methods(what, methods)
        lower.merge(what, methods, directory)

    def _only(self, run: Callable[[], None], *steps: str) -> Callable[[], None]:
        """A step that imports no module of the driver that its key lacks."""
        parts = {part for step in steps for part in self.request.plan.driver_parts(step)}
        return step_files.only(steps, parts)(run)

    def _step(self, step: str, key: str, directory: Path, run: Callable[[], object]) -> str:
        """Fills a new directory from the cache; or runs the step and stores what it made. Returns `run` or `cached`."""
        from etbuild.inputs.undeclared import unkeyed

        directory.mkdir()
        if self.cache is None:
            run()
            self.request.check_unchanged()
            return "run"
        fetched = step == "export" or self.effort.accelerate
        if fetched and self.cache.fetch(step, key, directory) is not None:
            return "cached"
        with self.cache.building(step, key):
            if fetched and self.cache.fetch(step, key, directory) is not None:
                return "cached"
            with unkeyed() as unknown:
                run()
            self.request.check_unchanged()
            if not unknown:
                self.cache.store(step, key, directory, _files_below(directory))
        return "run"


def _files_below(directory: Path) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())


def _export_files(exported: Path) -> list[str]:
    """The files of an export that lowering computes with. Line numbers are only for messages, and example inputs for
    the comparison."""
    return [name for name in _files_below(exported) if name not in (LINES, EXAMPLES)]


def _export_data(request: _Request) -> dict[str, DocumentPath]:
    """The data that the export reads."""
    return {**request.beside, **request.data(request.plan.export_plan.data_names)}


def _lower_data(request: _Request, exported: Path) -> dict[str, DocumentPath]:
    """The data that lowering reads. This is all data if lowering also exports."""
    if ExportFiles.below(exported).needs_reexport:
        return request.all_data
    return {**request.beside, **request.data(request.plan.lower_plan.data_names)}


def _exporting(exported: Path) -> tuple[str, ...]:
    """The step whose code later steps run too, if the export is without its methods."""
    return ("export",) if ExportFiles.below(exported).needs_reexport else ()


def _export_key(request: _Request) -> str:
    """The key of the export: its part of the plan, sources, example inputs, and the toolchain.

    The toolchain leaves out what only lowering needs, so that variants for several backends share one export.
    """
    needed = backends.distributions(request.plan.export_backends)
    return digest(
        {
            "schema": "executorch-export-key/v1",
            "environment": request.environment,
            "plan": request.plan.export_plan.to_json(),
            "sources": request.described["sources"],
            "data": {name: request.described["data"][name] for name in _export_data(request)},
            "driver": request.driver_of("export"),
            "toolchain": toolchain(request.used.packages, needed),
        }
    )


def _compare_key(request: _Request, exported: Path, lowering: LoweringFacts) -> str:
    """The key of the comparison: the program, the export that it is compared with, and how."""
    files = [*_export_files(exported), EXAMPLES]
    return digest(
        {
            "schema": "executorch-compare-key/v3",
            "environment": request.environment,
            "plan": request.plan.compare_plan.to_json(),
            "export": {name: file_digest(exported / name) for name in files},
            "data": {name: request.described["data"][name] for name in _lower_data(request, exported)},
            "program": [artifact["sha256"] for artifact in lowering["artifacts"]],
            "facts": [lowering["program"], lowering["runtime_limits"], lowering["non_finite"]],
            "driver": [request.compare_driver, *request.driver_of(*_exporting(exported))],
            "toolchain": request.python,
        }
    )


def _lower_key(request: _Request, exported: Path) -> str:
    """The key of lowering: its part of the plan, the export's files, the data, and the toolchain."""
    return digest(
        {
            "schema": "executorch-lower-key/v1",
            "environment": request.environment,
            "plan": request.plan.lower_plan.to_json(),
            "export": {name: file_digest(exported / name) for name in _export_files(exported)},
            "data": {name: request.described["data"][name] for name in _lower_data(request, exported)},
            "driver": request.driver_of("lower", *_exporting(exported)),
            "toolchain": request.python,
        }
    )


def _method_key(request: _Request, exported: Path, name: str) -> str:
    """The key of lowering one method by itself. It leaves out the other methods and the constants of the export.

    What other methods write to counts only if methods share buffers.
    """
    others = {f"{METHODS}/{other}.pt2" for other in request.plan.methods if other != name}
    others |= {CONSTANTS, CONSTANT_TENSORS, *([] if request.plan.share_mutable_buffers else [WRITTEN])}
    plan = request.plan.lower_plan.of_method(name)
    return digest(
        {
            "schema": "executorch-method-key/v1",
            "environment": request.environment,
            "plan": plan.to_json(),
            "export": {file: file_digest(exported / file) for file in _export_files(exported) if file not in others},
            "data": {
                data: request.described["data"][data] for data in {**request.beside, **request.data(plan.data_names)}
            },
            "driver": request.driver_of("lower"),
            "toolchain": request.python,
        }
    )
