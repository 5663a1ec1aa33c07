"""The results of tests: for people, as JSON, and as JUnit XML."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from etbuild.errors import printable


@dataclass(frozen=True)
class Result:
    """The result of one test.

    Attributes:
        name: Its name, such as `forward/example`.
        state: `passed`, `failed` or `skipped`.
        detail: What was measured, what is wrong, or why the test was skipped.
        seconds: How long it took.
        measured: Numbers that were measured, by name.
    """

    name: str
    state: str
    detail: str = ""
    seconds: float = 0.0
    measured: dict[str, float] = field(default_factory=dict)


Results = Sequence[tuple[str, Sequence[Result]]]
"""The results of each program, with its name."""


def text(results: Results) -> str:
    """The results for people: a line for each, and more for those that failed."""
    lines = []
    for program, of_program in results:
        lines += [f"{printable(program)}:"] if len(results) > 1 else []
        lines += [line for result in of_program for line in _shown(result)]
    states = [each.state for _, of_program in results for each in of_program]
    counts = {state: states.count(state) for state in ("passed", "failed", "skipped")}
    lines.append(", ".join(f"{count} {state}" for state, count in counts.items() if count or state == "passed"))
    return "\n".join(lines)


def _shown(result: Result) -> list[str]:
    first, *more = _lines(result.detail) or [""]
    line = f"{result.state:7}  {printable(result.name)}" + (f"  {first}" if first else "")
    return [line, *(f"         {each}" for each in more)]


def as_json(program: str, results: Sequence[Result]) -> dict[str, Any]:
    """The results as JSON data. A number that is not finite is null."""
    tests = [asdict(each) for each in results]
    for test in tests:
        test["measured"] = {key: value if math.isfinite(value) else None for key, value in test["measured"].items()}
    return {"program": program, "tests": tests}


def junit(results: Results) -> bytes:
    """The results as JUnit XML, with a suite for each program."""
    suites = ET.Element("testsuites")
    for program, of_program in results:
        _add_suite(suites, program, of_program)
    ET.indent(suites)
    content: bytes = ET.tostring(suites, encoding="utf-8", xml_declaration=True)
    return content + b"\n"


def _add_suite(suites: ET.Element, program: str, results: Sequence[Result]) -> None:
    suite = ET.SubElement(
        suites,
        "testsuite",
        name=program,
        tests=str(len(results)),
        failures=str(sum(each.state == "failed" for each in results)),
        errors="0",
        skipped=str(sum(each.state == "skipped" for each in results)),
        time=f"{sum(each.seconds for each in results):.3f}",
    )
    for each in results:
        group, _, name = each.name.rpartition("/")
        classname = ".".join([program, *group.split("/")] if group else [program])
        case = ET.SubElement(suite, "testcase", classname=classname, name=name, time=f"{each.seconds:.3f}")
        detail = "\n".join(_lines(each.detail))
        if each.state == "failed":
            ET.SubElement(case, "failure", message=detail.partition("\n")[0]).text = detail
        elif each.state == "skipped":
            ET.SubElement(case, "skipped", message=detail)
        elif detail:
            ET.SubElement(case, "system-out").text = detail


def _lines(text: str) -> list[str]:
    """The lines of a text, without characters that XML cannot hold or that control a terminal."""
    return [printable(line) for line in text.split("\n")] if text else []
