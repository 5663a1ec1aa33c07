"""Summaries of a build for people who review a change: Markdown for a pull request, and JUnit XML for checks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from etbuild.errors import CheckError, printable
from etbuild.results import Index, Report
from etkit import kept_results
from etkit.building import explanation, lockfile
from etkit.inspection import program_diff
from etkit.kept_results import Results
from etkit.publishing import markdown as markdown_of
from etkit.registry.oci import facts
from etkit.registry.oci.facts import Facts
from etkit.registry.oci.package import Program
from etkit.registry.oci.places import Place
from etkit.tables import size

_MOST_ROWS = 60  # of results
_LONGEST = 200  # characters of a cell
_MOST_LINES = 60  # lines about a program at most: the size of a comment is limited


@dataclass(frozen=True)
class Summarized:
    """A program of a build, and the earlier program of the same name.

    Attributes:
        name: Its name.
        before: The facts of the earlier program; None if there is none.
        after: Its facts; None if it was removed.
        why: The inputs of its key that differ, one a line.
        what: The differences of the programs, one a line.
        report: Its report, if it can be read.
        index: The index of its build; None if it was removed.
        results: The results of its tests and samples; None if there are none.
    """

    name: str
    before: Facts | None
    after: Facts | None
    why: list[str]
    what: list[str]
    report: Report | None
    index: Index | None
    results: Results | None = None

    @property
    def state(self) -> str:
        """What has happened to it, in a word or two."""
        if self.before is None:
            return "new"
        if self.after is None:
            return "removed"
        if self.before.digest == self.after.digest:
            return "same"
        return "changed" if self.what else "same program"


def summarize(before: Place | None, after: Place, only_built: bool = False) -> list[Summarized]:
    """Compares the programs of two places by name.

    Args:
        before: The build to compare with; None if there is none yet.
        after: The build.
        only_built: Whether to leave out programs that the build lacks: it may have only those that a change touches.

    Raises:
        EtbuildError: A document is damaged.
    """
    old = {program.name: program for program in before.content.programs} if before else {}
    new = {program.name: program for program in after.content.programs}
    return [
        _compared(name, before, old.get(name), after, new.get(name))
        for name in sorted(new if only_built else {*old, *new})
    ]


def _compared(name: str, before: Place | None, old: Program | None, after: Place, new: Program | None) -> Summarized:
    old_facts = facts.read(before.content, old, before.load) if before and old else None
    new_facts = facts.read(after.content, new, after.load) if new else None
    why: list[str] = []
    what: list[str] = []
    if before and old and new and old.manifest.sha256 != new.manifest.sha256:
        why = explanation.differences(before.content.index(old), after.content.index(new))
        compared = program_diff.compare(_sections(before, old), _sections(after, new))
        what = list(program_diff.text(compared))
    report = facts.report(new, after.load) if new else None
    index = after.content.index(new) if new else None
    return Summarized(name, old_facts, new_facts, why, what, report, index)


def with_results(programs: Sequence[Summarized], directory: Path) -> list[Summarized]:
    """The same programs with the results of their tests.

    Args:
        programs: The programs.
        directory: A directory with files of results. Those about other bytes do not count.
    """
    found = []
    for each in programs:
        built = [] if each.index is None else [part for part in each.index["artifacts"] if part["kind"] == "program"]
        results = kept_results.of_program(directory, each.name, built[0]["sha256"]) if built else None
        found.append(replace(each, results=results or each.results))
    return found


def _sections(place: Place, program: Program) -> program_diff.Facts:
    """The sections that `etbuild diff` compares, without a report of another release."""
    return program_diff.of_build(place.content.index(program), facts.report(program, place.load))


def markdown(programs: Sequence[Summarized], left_out: Sequence[Results] = ()) -> str:
    """The summary as Markdown, as GitHub and GitLab show it.

    Args:
        programs: The programs.
        left_out: The results of variants that do not qualify.
    """
    lines = ["| program | size | delegated | memory | |", "|---|---:|---:|---:|---|"]
    for each in programs:
        cells = [
            markdown_of.code(each.name),
            _cell(each, lambda found: found.size, size),
            _cell(each, lambda found: found.delegated, "{:.1%}".format),
            _cell(each, lambda found: found.memory, size),
            each.state,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [f"| {markdown_of.code(each.name[:_LONGEST])} | - | - | - | does not qualify |" for each in left_out]
    lines += [*_measured([each.results for each in programs if each.results is not None], left_out)]
    for each in programs:
        lines += [
            *_folded(f"Why `{each.name}` changed", each.why),
            *_folded(f"What changed in `{each.name}`", each.what),
        ]
    return "\n".join(lines) + "\n"


def _measured(results: Sequence[Results], left_out: Sequence[Results]) -> Iterator[str]:
    """A table of what was measured on samples and in tests; empty without results."""
    known = [(each, one) for each in [*results, *left_out] for one in each.results]
    rows = [(each, one) for each, one in known if one.measured or one.state == "failed"]
    if not rows:
        return
    yield from ["", "| program | test | measured | |", "|---|---|---|---|"]
    for each, one in rows[:_MOST_ROWS]:
        names = " | ".join(markdown_of.code(name[:_LONGEST]) for name in (each.name, one.name))
        detail = markdown_of.line(one.detail.partition("\n")[0][:_LONGEST])
        yield f"| {names} | {detail} | {one.state} |"
    if len(rows) > _MOST_ROWS:
        yield f"| and {len(rows) - _MOST_ROWS} more | | | |"


def _cell(program: Summarized, fact: Callable[[Facts], Any], shown: Callable[[Any], str]) -> str:
    """The value of a fact, and its earlier value if it differs."""
    old, new = (None if each is None else fact(each) for each in (program.before, program.after))
    texts = ["-" if value is None else shown(value) for value in (old, new)]
    return texts[1] if program.before is None or old == new else f"{texts[0]} → {texts[1]}"


def _folded(title: str, lines: list[str]) -> Iterator[str]:
    """Lines that a reader can unfold. They are shown unchanged."""
    if not lines:
        return
    shown = [printable(line) for line in lines[:_MOST_LINES]]
    if len(lines) > _MOST_LINES:
        shown.append(f"and {len(lines) - _MOST_LINES} more")
    longest = max((len(run) for line in shown for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    yield from [
        "",
        f"<details><summary>{escape(printable(title), quote=False)}</summary>",
        "",
        f"{fence}text",
        *shown,
        fence,
        "",
        "</details>",
    ]


def lock_differences(programs: list[Summarized], lockfiles: Path) -> dict[str, CheckError | None]:
    """How programs that were built differ from their lockfiles, by their names; None if they do not.

    Args:
        programs: The programs.
        lockfiles: A directory of lockfiles, each `NAME.lock.json`.

    Raises:
        InputError: A lockfile is damaged.
    """
    built = [(each.name, each.index) for each in programs if each.index is not None]
    return {name: _differs(lockfiles / f"{name}.lock.json", index) for name, index in built}


def junit(programs: list[Summarized], locks: Mapping[str, CheckError | None]) -> bytes:
    """The checks of the programs as JUnit XML: those of the manifests, and lockfiles.

    Args:
        programs: The programs.
        locks: How some of them differ from their lockfiles; None if they do not.
    """
    suites = ET.Element("testsuites")
    for each in programs:
        if each.index is None:
            continue
        suite = ET.SubElement(suites, "testsuite", name=each.name)
        _case(suite, each.name, "build", None)
        for check in each.report["checks"] if each.report else []:
            of = f" {check['of']}" if "of" in check else ""
            _case(suite, each.name, f"{check['check']}{of}: {check['actual']} (limit {check['limit']})", None)
        for one in each.results.results if each.results else ():
            _case(suite, each.name, one.name, one.detail or one.state if one.state == "failed" else None)
        if each.name in locks:
            differs = locks[each.name]
            _case(suite, each.name, "lockfile", None if differs is None else str(differs))
        cases = suite.findall("testcase")
        suite.set("tests", str(len(cases)))
        suite.set("failures", str(len(suite.findall("testcase/failure"))))
    ET.indent(suites)
    text: bytes = ET.tostring(suites, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _case(suite: ET.Element, program: str, name: str, failure: str | None) -> None:
    case = ET.SubElement(suite, "testcase", classname=program, name=printable(name))
    if failure is not None:
        text = "\n".join(map(printable, failure.split("\n")))
        ET.SubElement(case, "failure", message=text.partition("\n")[0]).text = text


def _differs(lock: Path, index: Index) -> CheckError | None:
    """How a program differs from its lockfile; None if it does not."""
    try:
        lockfile.check(lock, lockfile.lock(index), f"etbuild lock INDEX {lock.name} --update")
    except CheckError as error:
        return error
    return None


def as_json(programs: Sequence[Summarized], left_out: Sequence[Results] = ()) -> list[dict[str, Any]]:
    """The summary as JSON data. Arguments are those of `markdown`."""
    return [
        {
            "name": each.name,
            "state": each.state,
            "before": asdict(each.before) if each.before else None,
            "after": asdict(each.after) if each.after else None,
            "why": each.why,
            "what": each.what,
            **({"results": each.results.listed} if each.results else {}),
        }
        for each in programs
    ] + [{"name": each.name, "state": "does not qualify", "results": each.listed} for each in left_out]
