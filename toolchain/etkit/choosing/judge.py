"""Judges whether a variant has what its `qualify` asks for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild.errors import DocumentPath
from etbuild.files.digests import file_digest
from etkit.choosing import measured
from etkit.kept_results import Kept, Results
from etkit.tables import size
from etplugins.model_tests.parts import ALL_OUTPUTS, BASE, Agreement, PartOf, Qualify

if TYPE_CHECKING:
    from etkit.building.programs import Candidate
    from etkit.local.build import BuildOptions

_SHIPPED = ("program", "named_data")


def judge(
    given: Mapping[str, Any], candidate: Candidate, others: Mapping[str, Candidate], how: BuildOptions
) -> Results:
    """Compares a variant with what it must reach.

    Args:
        given: The section `qualify` of its manifest.
        candidate: The variant.
        others: The programs with which it is compared, by their words after `of`. `base` is among them.
        how: Where and how builds run.

    Raises:
        InputError: An output cannot be measured, or the runtime here has no backend that the variant calls.
        BuildError: A model or a program cannot be run.
    """
    qualify = Qualify.of_manifest(given)
    results = [*_relative("size", qualify.size, candidate, others)]
    results += _relative("memory", qualify.memory, candidate, others)
    agreements = [*_agreements(qualify, candidate, others[BASE])]
    if agreements:
        found = measured.agreements([each for _, each in agreements], candidate, others[BASE], how)
        results += [Kept(name, *each) for (name, _), each in zip(agreements, found, strict=True)]
    qualifies = all(each.state == "passed" for each in results)
    return Results(candidate.plan.name, file_digest(candidate.program), results, qualifies)


def _relative(key: str, limit: PartOf | None, candidate: Candidate, others: Mapping[str, Candidate]) -> Iterator[Kept]:
    """The result of a limit relative to another program."""
    if limit is None:
        return
    measure = shipped_bytes if key == "size" else planned_bytes
    other = others[limit.of]
    own, theirs = (measure(each.directory, each.plan.name) for each in (candidate, other))
    part = own / theirs if theirs else 1.0 if own == theirs else float("inf")
    holds = own <= limit.at_most * theirs
    detail = f"{part:.4g} of `{other.plan.name}` ({size(own)} of {size(theirs)})"
    if not holds:
        detail += f"; `at_most` is {limit.at_most:g}"
    yield Kept(f"qualify/{key}", "passed" if holds else "failed", detail, {"value": part, "bytes": own})


def _agreements(qualify: Qualify, candidate: Candidate, base: Candidate) -> Iterator[tuple[str, Agreement]]:
    """What is measured with the outputs, and the name of each result."""
    if qualify.sqnr is not None:
        path: DocumentPath = ("qualify", "sqnr")
        for method in sorted(candidate.plan.methods.keys() & base.plan.methods.keys()):
            least = qualify.sqnr.at_least
            limit = Agreement(path=path, measure="sqnr", method=method, output=ALL_OUTPUTS, min_worst=least)
            yield f"qualify/sqnr/{method}", limit
    for each in qualify.agreement or ():
        yield f"qualify/agreement/{each.measure}", each


def shipped_bytes(directory: Path, name: str) -> int:
    """The bytes of a program and its named data, from its index."""
    index = json.loads((directory / f"{name}.index.json").read_bytes())
    return sum(each["size"] for each in index["artifacts"] if each["kind"] in _SHIPPED)


def planned_bytes(directory: Path, name: str) -> int:
    """The planned memory of the method that needs most, in bytes, from the report."""
    report = json.loads((directory / f"{name}.report.json").read_bytes())
    return max((sum(method["memory"]) for method in report["methods"].values()), default=0)
