"""The whole road on one machine: export, lower and report, each from the cache where nothing that it reads changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild import files, steps
from etbuild.changes import changes
from etbuild.errors import BuildError, Problem
from etbuild.inputs import Inputs, Used, describe_files, describe_inputs, file_digest, used_sources
from etbuild.plan import Plan, data_names, digest, example_names, export_plan, lower_plan
from etbuild.steps import Stage

if TYPE_CHECKING:
    from etbuild.cache import Cache


@dataclass(frozen=True)
class Built:
    """A build that ended well.

    Attributes:
        key: Of the program.
        artifacts: The program, the named data, the report and the index.
        steps: What was done: `run` or `cached`, by step.
    """

    key: str
    artifacts: list[files.Artifact]
    steps: dict[str, str]


@dataclass(frozen=True)
class _Request:
    """What is to be built, and everything that it depends on."""

    plan: Plan
    inputs: Inputs
    used: Used
    described: dict[str, Any]

    @property
    def key(self) -> str:
        return digest(self.described)

    def check_unchanged(self) -> None:
        """What was digested has to be what was read: else another content would be kept under the key.

        Raises:
            BuildError: A source or a data file is no longer what it was when the build began.
        """
        now = describe_files(self.inputs, self.used, data_names(self.plan))
        for kind in ("sources", "data"):
            for change in changes(self.described[kind], now[kind]):
                message = f"`{change.path[0]}` was changed while the program was built"
                raise BuildError([Problem(message, hint="build again")])


def build(
    plan: Plan,
    inputs: Inputs,
    directory: Path,
    stage: Stage,
    cache: Cache | None = None,
    settle: Callable[[], None] = lambda: None,
    verify_reproducible: bool = False,
) -> Built:
    """Builds a program, or takes it from the cache.

    Args:
        plan: What to build.
        inputs: What may be read.
        directory: Where `NAME.pte`, `NAME.TAG.ptd`, `NAME.report.json` and `NAME.index.json` go. They appear there when
            all of them are written and checked, and not before.
        stage: Is told of each stage, for progress.
        cache: Where results are looked for and kept.
        settle: Called before the first step runs, which needs surroundings that are the same each time.
        verify_reproducible: Build twice, both times from nothing, and compare.

    Raises:
        InputError: A declared input is missing or does not fit.
        BuildError: The model cannot be exported, lowered or written.
        CheckError: The program breaks a bound that the manifest sets.
    """
    with stage("read the inputs"):
        used = used_sources(inputs, export_plan(plan))
        request = _Request(plan, inputs, used, describe_inputs(plan, inputs, used))
    if cache is None or verify_reproducible:
        settle()
        return _build(request, directory, stage, cache, verify_reproducible)
    found = _cached(request, directory, stage, cache)
    if found is None:
        settle()
        with cache.building("program", request.key):
            found = _cached(request, directory, stage, cache) or _build(request, directory, stage, cache)
    return found


def _cached(request: _Request, directory: Path, stage: Stage, cache: Cache) -> Built | None:
    with files.staging(directory) as staged:
        with stage("look into the cache"):
            if cache.fetch("program", request.key, staged) is None:
                return None
        name = f"{request.plan['name']}.index.json"
        index = staged / name
        artifacts = [files.Artifact(staged, **facts) for facts in json.loads(index.read_bytes())["artifacts"]]
        artifacts.append(files.Artifact(staged, name, "index", index.stat().st_size, file_digest(index)))
        return Built(request.key, files.publish(artifacts, directory), {"program": "cached"})


def _verify(request: _Request, lowered: list[files.Artifact]) -> None:
    from etbuild import reproducibility

    made = {artifact.directory / artifact.file.partition("/")[0] for artifact in lowered}
    plans = export_plan(request.plan), lower_plan(request.plan)
    reproducibility.verify(*plans, request.inputs, request.used, sorted(made))


def _build(
    request: _Request, directory: Path, stage: Stage, cache: Cache | None, verify_reproducible: bool = False
) -> Built:
    plan, name = request.plan, request.plan["name"]
    steps_cache = None if verify_reproducible else cache  # who asks whether two builds agree wants two builds
    with files.staging(directory) as staged:
        exported, made = staged / "export", staged / "program"
        done = {}
        done["export"] = _step(
            "export",
            _export_key(request),
            exported,
            lambda: steps.export(export_plan(plan), request.inputs, request.used, exported, stage),
            request,
            steps_cache,
        )
        done["lower"] = _step(
            "lower",
            _lower_key(request, exported),
            made,
            lambda: steps.lower(lower_plan(plan), exported, request.inputs, made, stage),
            request,
            steps_cache,
        )
        with stage("check and report"):
            lowering = steps.read_lowering(made / f"{name}.lowering.json")
            lowered = [files.Artifact(made, **facts) for facts in lowering["artifacts"]]
            artifacts = [*lowered, *steps.check_and_report(plan, request.described, lowering, made)]
        if verify_reproducible:
            with stage("build again and compare"):
                _verify(request, lowered)
        if cache is not None:
            cache.store("program", request.key, made, [artifact.file for artifact in artifacts])
        return Built(request.key, files.publish(artifacts, directory), {**done, "report": "run"})


def _step(
    step: str, key: str, directory: Path, run: Callable[[], object], request: _Request, cache: Cache | None
) -> str:
    """Fills a directory from the cache, or by running the step and keeping what it made."""
    directory.mkdir()
    if cache is None:
        run()
        request.check_unchanged()
        return "run"
    if cache.fetch(step, key, directory) is not None:
        return "cached"
    with cache.building(step, key):
        if cache.fetch(step, key, directory) is not None:
            return "cached"
        run()
        request.check_unchanged()
        cache.store(step, key, directory, _files_below(directory))
    return "run"


def _files_below(directory: Path) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())


def _export_key(request: _Request) -> str:
    """Over what the export reads: its part of the plan, sources, example inputs, and the toolchain."""
    exporting = export_plan(request.plan)
    return digest(
        {
            "schema": "executorch-export-key/v1",
            "plan": exporting,
            "sources": request.described["sources"],
            "data": {name: request.described["data"][name] for name in example_names(exporting)},
            "toolchain": request.described["toolchain"],
        }
    )


def _lower_key(request: _Request, exported: Path) -> str:
    """Over what lowering reads: its part of the plan, the export's files, the data, and the toolchain."""
    return digest(
        {
            "schema": "executorch-lower-key/v1",
            "plan": lower_plan(request.plan),
            "export": {name: file_digest(exported / name) for name in _files_below(exported)},
            "data": request.described["data"],
            "toolchain": request.described["toolchain"],
        }
    )
