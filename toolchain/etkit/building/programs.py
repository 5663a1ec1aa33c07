"""The programs of a command: builds each, and leaves out variants that do not have what their `qualify` asks for."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild import plugins
from etbuild.errors import BuildError, CheckError, EtbuildError, InputError, Problem
from etbuild.files import json_file
from etbuild.files.digests import file_digest
from etbuild.files.writing import Artifact
from etbuild.manifest.positions import locating
from etbuild.publishing.artifacts import is_artifact_name, publish, publish_together, scratch_in
from etkit import kept_results
from etkit.building.checkpoints import each_checkpoint, in_programs
from etkit.kept_results import Results

if TYPE_CHECKING:
    from etbuild.inputs.source_lines import SourceLines
    from etbuild.inputs.step_context import Stage
    from etbuild.key.declared import Inputs
    from etbuild.manifest.validate import Manifest
    from etbuild.plan.plan import Plan
    from etbuild.results import LoweringFacts
    from etkit.local.build import BuildOptions, BuildResult

BASE = "base"
"""In `qualify`, the program without a variant."""
_RELATIVE = ("size", "memory")


@dataclass(frozen=True)
class Wanted:
    """A program to build.

    Attributes:
        manifest: The manifest, with a variant merged into it.
        inputs: The sources and data that its build may read.
        others: The programs with which it is compared, if it has to qualify, by their words after `of`.
        is_named: Whether the command names its variant. Such a variant must qualify; with `all` it is left out.
    """

    manifest: Manifest
    inputs: Inputs
    others: Mapping[str, Wanted] = field(default_factory=dict)
    is_named: bool = True

    @property
    def name(self) -> str:
        """The name of the program."""
        return self.manifest.data["name"]

    @property
    def qualify(self) -> dict[str, Any]:
        """What it must reach; empty without limits."""
        found: dict[str, Any] = self.manifest.data.get("qualify", {})
        return found


@dataclass(frozen=True)
class Candidate:
    """A program that was built, and may be left out.

    Attributes:
        manifest: The manifest, with a variant merged into it.
        plan: Its plan.
        inputs: The sources and data of the build.
        directory: Where its artifacts are.
        key: Its key.
    """

    manifest: Manifest
    plan: Plan
    inputs: Inputs
    directory: Path
    key: str

    @property
    def program(self) -> Path:
        """Its `.pte`."""
        return self.directory / f"{self.plan.name}.pte"


@dataclass
class Outcome:
    """What has become of the programs of a command.

    Attributes:
        built: What was built and written, with the names of the programs.
        errors: The errors of the others, by name.
        judged: The results of variants that had to qualify, by name. Those that do not are not among the built ones.
        candidates: All programs that were built, by name.
    """

    built: list[tuple[str, BuildResult]] = field(default_factory=list)
    errors: dict[str, EtbuildError] = field(default_factory=dict)
    judged: dict[str, Results] = field(default_factory=dict)
    candidates: dict[str, Candidate] = field(default_factory=dict)

    @property
    def left_out(self) -> list[Results]:
        """The results of the variants that were left out."""
        return [each for each in self.judged.values() if not each.qualifies]


def programs_of(
    loaded: Sequence[Manifest],
    file: tuple[Path, str | None],
    names: Sequence[str | None] | None,
    settings: Mapping[str, Any],
    given: Inputs,
    patterns: Sequence[str] = (),
) -> list[Wanted]:
    """The programs of a manifest to build.

    Args:
        loaded: The manifest, with each variant that is built.
        file: Its file, and the file's name in errors.
        names: The names of these variants; None for all, and the manifest without one.
        settings: The values of parameters.
        given: The sources and data that the builds may read.
        patterns: The checkpoints, as `each_checkpoint` takes them.

    Raises:
        InputError: A program with which one is compared has problems, or the checkpoints do not fit.
    """
    with locating(loaded[0].positions):
        programs = [Wanted(*each) for each in each_checkpoint(loaded, given, patterns)]
    if not any("qualify" in each.data for each in loaded):
        return programs
    words = [name or BASE for name in (_all_names(*file) if names is None else names)]
    missing = sorted({word for each in loaded for word in compared_with(each)} - {*words})
    count = len(programs) // len(loaded)
    more = [] if not missing else _load(file, missing, settings)
    with locating(loaded[0].positions):
        others = [Wanted(*each) for each in each_checkpoint(more, given, patterns)]
    of_word = {word: programs[number * count :][:count] for number, word in enumerate(words)}
    of_word |= {word: others[number * count :][:count] for number, word in enumerate(missing)}
    return [
        replace(
            each,
            is_named=names is not None,
            others={word: of_word[word][number % count] for word in sorted(compared_with(each.manifest))},
        )
        for number, each in enumerate(programs)
    ]


def _load(file: tuple[Path, str | None], words: Sequence[str], settings: Mapping[str, Any]) -> list[Manifest]:
    from etbuild.manifest import validate

    return validate.load_each(*file, [None if word == BASE else word for word in words], settings)


def _all_names(path: Path, shown: str | None) -> list[str | None]:
    """The manifest without a variant, and the names of its variants, in its order."""
    from etbuild.manifest import variants, yaml_document

    return [None, *variants.names(yaml_document.load(path, shown).data)]


def compared_with(manifest: Manifest) -> set[str]:
    """The words after `of` for programs with which a program is compared: none if it does not have to qualify."""
    limits: dict[str, Any] = manifest.data.get("qualify", {})
    return {BASE, *(limits[key]["of"] for key in _RELATIVE if key in limits)} if limits else set()


def build_each(programs: Sequence[Wanted], directory: Path, how: BuildOptions, *, go_on: bool) -> Outcome:
    """Builds programs.

    Args:
        programs: The programs.
        directory: The directory for the artifacts. It gets those of a variant that has to qualify only if it does, and
            loses older ones otherwise.
        how: Where and how the builds run.
        go_on: Whether to build the other programs after an error of one, and return the error.

    Returns:
        What has become of them.

    Raises:
        EtbuildError: One cannot be built, and `go_on` is false.
    """
    with ExitStack() as opened:
        building = _Building(programs, directory, how, go_on, opened)
        building.run()
        return building.outcome


class _Building:
    """The builds of a command. Programs that may be left out are built into directories that are removed at the end."""

    def __init__(
        self, programs: Sequence[Wanted], directory: Path, how: BuildOptions, go_on: bool, opened: ExitStack
    ) -> None:
        self._programs, self._directory, self._how, self._go_on, self._opened = programs, directory, how, go_on, opened
        self._results: dict[str, BuildResult] = {}
        self._pages: dict[str, _Page] = {}
        self.outcome = Outcome()
        self._candidates = self.outcome.candidates

    def run(self) -> None:
        """Builds all programs, and judges those that have to qualify."""
        own = {each.name for each in self._programs}
        more = {other.name: other for each in self._programs for other in each.others.values() if other.name not in own}
        everything = [*self._programs, *more.values()]
        for number, each in enumerate(everything, 1):
            shown = f"{each.name} ({number} of {len(everything)})"
            how = self._how
            if len(everything) > 1:
                stage, step = (of_program(part, shown) for part in (how.stage, how.step))
                how = replace(how, stage=stage, step=step)
            try:
                self._build(each, how, is_kept=each.name in own and not each.others)
            except EtbuildError as error:
                self._fail(each.name, error)
        for each in self._programs:
            if each.others and each.name in self._candidates:
                try:
                    self._judge(each)
                except EtbuildError as error:
                    self._fail(each.name, error)
        order = [each.name for each in self._programs]
        self.outcome.built.sort(key=lambda named: order.index(named[0]))

    def _fail(self, name: str, error: EtbuildError) -> None:
        if not self._go_on:
            raise error if len(self._programs) == 1 and name == self._programs[0].name else in_programs({name: error})
        self.outcome.errors[name] = error

    def _build(self, each: Wanted, how: BuildOptions, is_kept: bool) -> None:
        # Below a directory of its own: this process has locked that one.
        place = self._directory if is_kept else self._opened.enter_context(scratch_in(self._directory)) / "built"
        if each.others and how.write_page is not None:
            self._pages[each.name] = _Page(how.write_page)
            how = replace(how, write_page=self._pages[each.name])
        began = time.monotonic()
        plan, built = _built(each.manifest, each.inputs, place, how)
        built = replace(built, seconds=time.monotonic() - began)
        self._candidates[each.name] = Candidate(each.manifest, plan, each.inputs, place, built.key)
        self._results[each.name] = built
        if is_kept:
            self.outcome.built.append((each.name, built))

    def _judge(self, each: Wanted) -> None:
        """Compares a variant with what it must reach. Writes it if it qualifies."""
        candidate, built = self._candidates[each.name], self._results[each.name]
        missing = [other.name for other in each.others.values() if other.name not in self._candidates]
        if missing:
            raise BuildError.of(f"it was built, and left out: {missing[0]}, with which it is compared, was not built")
        others = {word: self._candidates[other.name] for word, other in each.others.items()}
        with self._how.step(f"{each.name}: compare with what it must reach"), locating(each.manifest.positions):
            judge = plugins.load("judge", "qualify")
            results: Results = judge(each.qualify, candidate, others, self._how)
        self.outcome.judged[each.name] = results
        if results.qualifies:
            artifacts = [*built.artifacts[:-1], *self._written(results, candidate), built.artifacts[-1]]
            artifacts = [_as_it_is(artifact) for artifact in artifacts]
            published = publish(artifacts, self._directory)
            self.outcome.built.append((each.name, replace(built, artifacts=published)))
            self._candidates[each.name] = replace(candidate, directory=self._directory)  # others may name it
            return
        remove_older(self._directory, each.name)
        results.write(self._directory)
        if each.is_named:
            raise _does_not_qualify(results).located(each.manifest.positions)

    def _written(self, results: Results, candidate: Candidate) -> list[Artifact]:
        """The file of results, which was written beside a program. The page is made again, with these results."""
        if (older := kept_results.of_program(self._directory, results.name, results.sha256)) is not None:
            results = results.beside(older)
        results.write(candidate.directory)
        if (page := self._pages.get(results.name)) is not None:
            page.again(candidate.directory)
        name = f"{results.name}{kept_results.SUFFIX}"
        return [_as_it_is(Artifact(candidate.directory, name, "results", 0, ""))]


class _Page:
    """Writes the page of a program, and writes it again when there are results."""

    def __init__(self, write: Any) -> None:
        self._write = write
        self._given: tuple[str, LoweringFacts, SourceLines, list[str]] | None = None

    def __call__(
        self, directory: Path, name: str, lowering: LoweringFacts, lines: SourceLines, notes: list[str]
    ) -> Artifact:
        self._given = name, lowering, lines, notes
        made: Artifact = self._write(directory, *self._given)
        return made

    def again(self, directory: Path) -> None:
        """Replaces the page in a directory, which has the files of the program."""
        assert self._given is not None
        (directory / f"{self._given[0]}.report.html").unlink()
        self._write(directory, *self._given)


def _as_it_is(artifact: Artifact) -> Artifact:
    """An artifact with the size and the digest that its file has now: a page and results are made again."""
    if artifact.kind not in ("page", "results"):
        return artifact
    return replace(artifact, size=artifact.path.stat().st_size, sha256=file_digest(artifact.path))


def _does_not_qualify(results: Results) -> CheckError:
    """The error about a variant that a command names, and that does not qualify."""
    hint = "the program was not written; `--variant all` leaves such variants out, and builds the others"
    return CheckError(
        [
            Problem(f"{results.name} does not qualify: {what}", ("qualify", *_key(name)), hint)
            for name, what in reasons(results)
        ]
    )


def _key(name: str) -> tuple[str, ...]:
    return (name.split("/")[1],) if "/" in name else ()


def reasons(results: Results) -> list[tuple[str, str]]:
    """Why a variant does not qualify: what it breaks, and what was measured."""
    return [
        (each.name, f"{each.name.removeprefix('qualify/')}: {each.detail}")
        for each in results.results
        if each.state == "failed" and each.name.startswith("qualify/")
    ]


def remove_older(directory: Path, name: str) -> None:
    """Removes the artifacts of a program that earlier builds have written into a directory.

    Raises:
        BuildError: A file cannot be removed.
    """
    if not directory.is_dir():
        return
    index = f"{name}.index.json"
    ends = ("pte", "index.json", "report.json", "report.html", "results.json")
    found = [*(f"{name}.{end}" for end in ends), *_listed(directory / index, name)]
    found += [f"{name}.etrecord/{path.name}" for path in sorted((directory / f"{name}.etrecord").glob("*.etrecord"))]
    linked = {each for each in found if "/" in each and (directory / each).parent.is_symlink()}
    removed = [each for each in dict.fromkeys(found) if each not in linked and os.path.lexists(directory / each)]
    if removed:
        publish_together([], directory, removed)
    if f"{name}.pte" in removed:  # each build writes only results for a variant that it leaves out
        print(f"note: removed {name}.pte of an earlier build, and what belongs to it", file=sys.stderr)


def _listed(index: Path, name: str) -> list[str]:
    """The artifacts that an index lists, if their names are names of artifacts."""
    try:
        artifacts = json_file.read(index, json_file.Format("an index", "index"))["artifacts"]
    except InputError:
        return []
    return [each["file"] for each in artifacts if is_artifact_name(each["file"], name)]


def of_program(stage: Stage, program: str) -> Stage:
    """Shows the stages of one of several programs, with the program's name."""

    def named(text: str) -> AbstractContextManager[None]:
        return stage(f"{program}: {text}")

    return named


def _built(loaded: Manifest, given: Inputs, directory: Path, how: BuildOptions) -> tuple[Plan, BuildResult]:
    from etbuild.plan.plan import from_manifest
    from etkit.local.build import build

    plan = from_manifest(loaded.data)
    with locating(loaded.positions):
        return plan, build(plan, given, directory, how)


def build_program(loaded: Manifest, given: Inputs, directory: Path, how: BuildOptions) -> tuple[str, BuildResult]:
    """Builds one program, whether or not it qualifies.

    Args:
        loaded: The manifest, with a variant merged into it.
        given: The sources and data that the build may read.
        directory: The directory for the artifacts.
        how: Where and how the build runs.

    Returns:
        Its name and what was built.

    Raises:
        EtbuildError: The build failed. Its problems have their positions in the manifest.
    """
    plan, built = _built(loaded, given, directory, how)
    return plan.name, built
