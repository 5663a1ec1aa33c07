"""Builds on one machine: export, lower, compare and report. A step whose inputs did not change comes from the cache."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from etbuild import notes
from etbuild.errors import BuildError
from etbuild.files.digests import digest, file_digest, hashed_once
from etbuild.files.writing import Artifact
from etbuild.inputs.sources import UsedSources
from etbuild.inputs.step_context import Stage, silent
from etbuild.key.declared import Inputs
from etbuild.plan.plan import Plan
from etbuild.plan.step_plans import ExportPlan, LowerPlan
from etbuild.publishing.artifacts import publish, staging
from etbuild.steps.lowering_options import LoweringOptions
from etbuild.steps.one_by_one import one_by_one
from etkit.local import checked_files, snapshot
from etkit.local.agreement import Agreement, read_agreement
from etkit.local.pipeline import STEPS, Pipeline, Request
from etplugins.tokenizer import files

if TYPE_CHECKING:
    from etbuild.inputs.source_lines import SourceLines
    from etbuild.results import LoweringFacts
    from etkit.local.cache.store import Cache

# Files in the cache beside the artifacts. The last one is missing if no method was compared.
_CHECKED, _COMPARED, _AGREEMENT = "checked.files.json", "compared.json", "agreement.json"
_SHOWN = {"compare": "compare with PyTorch", "report": "check and report"}  # names of steps for people


@dataclass(frozen=True)
class BuildResult:
    """The result of a successful build.

    Attributes:
        key: The key of the program.
        artifacts: The program, the named data, the tokenizer, the report, the index, and the page and the ETRecords if
            they were asked for.
        steps: For each step, whether it ran: `run` or `cached`.
        methods: The same for each method, if methods were lowered one by one.
        comparisons: What each method was compared with in this build, as `Pipeline.comparisons`.
        agreement: For each compared method, the worst ratio of signal to error in decibels, None if nothing differs,
            and the number of calls. Methods of an earlier build whose figures were not kept are missing.
        seconds: How long the build took, if the caller has measured it.
    """

    key: str
    artifacts: list[Artifact]
    steps: dict[str, str]
    methods: dict[str, str] = field(default_factory=dict)
    comparisons: dict[str, str] = field(default_factory=dict)
    agreement: Agreement = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class FirstBuild:
    """What the first build made.

    Attributes:
        artifacts: The program, its named data and the facts about them: files, and directories of shards.
        export: The directory of the export.
        exported: The files of exported methods outside of that directory, by name.
        lowered: The directories of methods that were lowered by themselves.
        lines: The lines of the sources, if they are outside of the export.
        examples: The example inputs, if they are outside of the export.
        inputs: The digests of what the export read, if they were written.
    """

    artifacts: Sequence[Path]
    export: Path
    exported: Mapping[str, Path] = field(default_factory=dict)
    lowered: Sequence[Path] = ()
    lines: Path | None = None
    examples: Path | None = None
    inputs: Path | None = None


Verify = Callable[[ExportPlan, LowerPlan, Inputs, UsedSources, FirstBuild], None]


@dataclass(frozen=True)
class BuildOptions:
    """Where and how a build runs. They do not change what it makes.

    Attributes:
        stage: Is called for each stage, to show progress.
        step: The same for each step, which has stages.
        cache: The cache for results; None to build without one.
        restart: Is called before the first step. It restarts the command in fixed surroundings, unless the process
            already has them.
        lowering: How lowering runs.
        verify: Builds a second time without the cache, and compares with the first build. None: no second build.
        write_page: Writes the HTML page of the program beside the report and the index. Gets their directory, the name
            of the program, the facts of the lowering, the lines of the sources, and the notes of the comparison. None:
            there is no page.
        etrecord: Also write an ETRecord of each method.
        origins: A directory that also receives `NAME.lowering.json` and `NAME.export.lines.json`: they say where the
            instructions of the program come from.
    """

    stage: Stage
    cache: Cache | None = None
    restart: Callable[[], None] = lambda: None
    lowering: LoweringOptions = field(default_factory=LoweringOptions)
    verify: Verify | None = None
    write_page: Callable[[Path, str, LoweringFacts, SourceLines, list[str]], Artifact] | None = None
    etrecord: bool = False
    origins: Path | None = None
    step: Stage = silent

    @property
    def needs_steps(self) -> bool:
        """Whether the build needs files that the steps wrote, besides the program. The cache has them by step."""
        return self.write_page is not None or self.origins is not None or self.etrecord


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
        snapshot.wait_until_quiet(path for name in plan.data_names if (path := inputs.find(name)) is not None)
        files.check_files(plan, inputs)
        request = Request.read(plan, inputs)
    # If the caller changes how lowering runs, lowering has to run.
    if cache is None or options.verify is not None or not options.lowering.accelerate or options.needs_steps:
        options.restart()
        return _build(request, directory, options)
    cached = _cached(request, directory, options.stage, cache)
    if cached is None:
        options.restart()
        with cache.building("program", request.key):
            cached = _cached(request, directory, options.stage, cache)
            cached = cached or _build(request, directory, options)
    return cached


def _cached(request: Request, directory: Path, stage: Stage, cache: Cache) -> BuildResult | None:
    with staging(directory) as staged:
        with stage("look into the cache"):
            names = cache.fetch("program", request.key, staged)
            if names is None or not {_CHECKED, _COMPARED} <= {*names}:
                return None
            if not checked_files.check(staged / _CHECKED, _checked_by(request), request.files.used.packages):
                return None
        name = f"{request.plan.name}.index.json"
        index = staged / name
        artifacts = [Artifact(staged, **facts) for facts in json.loads(index.read_bytes())["artifacts"]]
        artifacts.append(Artifact(staged, name, "index", index.stat().st_size, file_digest(index)))
        # Otherwise a damaged entry could overwrite a file of the user.
        if {artifact.file for artifact in artifacts} != {*names} - {_CHECKED, _COMPARED, _AGREEMENT}:
            message = f"the cache entry {request.key[:16]} has other files than its index lists"
            raise BuildError.of(message, "build with `--no-cache`, and delete the cache")
        notes.show_of_comparison(staged / _COMPARED)
        notes.show_of_report(staged / f"{request.plan.name}.report.json")
        agreement = read_agreement(staged / _AGREEMENT)
        return BuildResult(request.key, publish(artifacts, directory), {"program": "cached"}, agreement=agreement)


def _checked_by(request: Request) -> str:
    """A digest for the checks of a cached program: all installed packages, and the code of the comparison."""
    return digest([request.environment, request.code_of("compare")])


def _build(request: Request, directory: Path, options: BuildOptions) -> BuildResult:
    from etbuild.guard.reads import unkeyed
    from etbuild.processes import forked

    forked.loaded.clear()  # drops what an earlier build in this process has imported
    # A comparison of two builds needs two builds, so the cache must not replace one.
    cache = None if options.verify is not None else options.cache
    with (
        staging(directory) as staged,
        unkeyed() as unknown,
        closing(Pipeline(request.of_one_moment(staged), staged, options.stage, options.lowering, cache)) as pipeline,
    ):
        request = pipeline.request
        steps = {}
        for step in STEPS:
            with options.step(_SHOWN.get(step.name, step.name)):
                steps[step.name] = pipeline.run(step)
        agreement = read_agreement(pipeline.agreement)
        if options.verify is not None:
            with options.stage("build again and compare"):
                _verify(options.verify, pipeline)
        if options.cache is not None and not unknown:
            whole = "cached" not in {*steps.values(), *pipeline.methods.values()}
            checked = pipeline.program / _CHECKED
            checked_files.record(checked, _checked_by(request), request.files.used.packages, whole, request.began)
            shutil.copyfile(pipeline.compared, pipeline.program / _COMPARED)
            names = [*(artifact.file for artifact in pipeline.artifacts), _CHECKED, _COMPARED]
            if agreement:
                shutil.copyfile(pipeline.agreement, pipeline.program / _AGREEMENT)
                names.append(_AGREEMENT)
            options.cache.store("program", request.key, pipeline.program, names)
        *artifacts, index = pipeline.artifacts
        artifacts += _more_files(pipeline, options)
        published = publish([*artifacts, index], directory)
        return BuildResult(request.key, published, steps, pipeline.methods, pipeline.comparisons, agreement)


def _verify(verify: Verify, pipeline: Pipeline) -> None:
    """Builds a second time, and compares."""
    plan, files = pipeline.request.plan, pipeline.request.files
    lowered = [artifact["file"].partition("/")[0] for artifact in pipeline.lowering["artifacts"]]
    paths = sorted({pipeline.program / name for name in lowered})
    plugin = one_by_one() if len(plan.methods) > 1 else None  # a single method is the program
    methods = [] if plugin is None else plugin.directories(pipeline.directory / "methods", sorted(plan.methods))
    first = FirstBuild(paths, pipeline.export.directory, lowered=methods)
    verify(plan.export_plan, plan.lower_plan, files.inputs, files.used, first)


def _more_files(pipeline: Pipeline, options: BuildOptions) -> list[Artifact]:
    """Writes further files that the options ask for. Returns those that are artifacts."""
    plan, lines, directory = pipeline.request.plan, pipeline.export.lines, pipeline.program
    artifacts: list[Artifact] = []
    if options.origins is not None:
        from etbuild.steps.facts import write_json

        write_json(options.origins, plan.name, "lowering", pipeline.lowering)
        write_json(options.origins, plan.name, "export.lines", lines.to_json())
    if options.etrecord:
        from etkit.local import etrecord

        job = pipeline.job(plan.lower_plan)
        records = etrecord.etrecords(job, lines, directory / f"{plan.name}.pte", pipeline.directory)
        artifacts += etrecord.write(directory, records, f"{plan.name}.etrecord")
    if options.write_page is not None:
        with options.stage("make the page"):
            said = json.loads(pipeline.compared.read_bytes())["data"].get("message", "").splitlines()
            artifacts.append(options.write_page(directory, plan.name, pipeline.lowering, lines, said))
    return artifacts
