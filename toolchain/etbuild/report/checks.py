"""The manifest's checks: limits on sizes, memory and delegation, and suspicious findings in the lowered program.

A suspicious finding is an error if the manifest asks for it, and otherwise a note.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from etbuild.errors import CheckError, DocumentPath, Problem
from etbuild.exception_text import hints
from etbuild.inputs import source_lines
from etbuild.inputs.source_lines import NO_LINES, SourceLines
from etbuild.plan.plan import Plan
from etbuild.report import refusals
from etbuild.results import CheckResult, LoweringFacts

_WORDS = {
    "max_program_bytes": "the program has {actual:,} bytes; the limit is {limit:,}",
    "max_named_data_bytes": "the named data{of} has {actual:,} bytes; the limit is {limit:,}",
    "max_duplicate_bytes": "duplicate weights take {actual:,} bytes; the limit is {limit:,}",
    "max_memory_bytes": "{of} plans {actual:,} bytes of memory; the limit is {limit:,}",
    "min_delegated": "{of}: {percent:.4g} % of the operators are delegated; `min_delegated` requires {least:.4g} %",
}
_HINTS = {
    "max_program_bytes": "`etbuild diff` shows what grew; if this is intended, raise the limit",
    "max_named_data_bytes": "`etbuild diff` shows what grew; if this is intended, raise the limit",
    "max_duplicate_bytes": "the report lists them under `sharing`; {largest}",
    "max_memory_bytes": "the upper bounds of dynamic shapes decide how much is planned",
    "min_delegated": "the report lists under `fallback` the operators that no backend took",
}


_OF_RUNNER = "the runner would fail: change the model, or write `checks: {runtime: false}` if yours has this kernel"


def measure(plan: Plan, lowering: LoweringFacts, lines: SourceLines = NO_LINES) -> list[CheckResult]:
    """Measures each check.

    Args:
        plan: The plan.
        lowering: The facts of the lowering.
        lines: The lines of the sources that an error may name.

    Returns:
        For each check its name, its limit and the measured value, sorted by name.

    Raises:
        CheckError: A limit is broken, or the program has a finding that the manifest forbids. The error lists all of
            them.
    """
    wanted: Mapping[str, object] = plan.checks
    measured = [
        entry for check in wanted.keys() & _MEASURES.keys() for entry in _measure(check, wanted[check], lowering)
    ]
    problems = [_problem(entry, wanted, lowering, lines) for entry in sorted(measured, key=_order) if not _holds(entry)]
    for check in sorted(_asked(plan)):
        findings = list(_FINDERS[check](lowering, lines))
        if check in wanted:
            problems += [replace(problem, path=("checks", check)) for problem in findings]
            measured.append({"check": check, "limit": 0, "actual": len(findings)})
        else:
            problems += [
                replace(problem, path=("runner",), hint=hints(_OF_RUNNER, problem.hint)) for problem in findings
            ]
    CheckError.raise_if(problems)
    return sorted(measured, key=_order)


def notes(plan: Plan, lowering: LoweringFacts, lines: SourceLines = NO_LINES) -> list[Problem]:
    """The suspicious findings that are no errors, because the manifest does not forbid them. Messages are full
    sentences, and hints name lines of the sources."""
    findings = [each for check in sorted(_FINDERS.keys() - _asked(plan)) for each in _FINDERS[check](lowering, lines)]
    told = [(each, *(each.hint or "").partition("\n")) for each in findings]
    return [Problem(f"{each.message}; {what}", hint=more or None) for each, what, _, more in told]


def _order(entry: CheckResult) -> tuple[str, str]:
    return entry["check"], entry.get("of", "")


def _asked(plan: Plan) -> set[str]:
    """The names of the findings that are errors in this plan. A runner has the kernels of ExecuTorch's package. So a
    plan with a runner needs no others, unless it has its own operators."""
    of_runner = plan.runner is not None and not (plan.custom_ops.libraries or plan.custom_ops.modules)
    return {check for check in _FINDERS if plan.checks.get(check, check == "runtime" and of_runner)}


def _non_finite(lowering: LoweringFacts, lines: SourceLines) -> Iterator[Problem]:
    del lines
    for name, counted in sorted(lowering["non_finite"].items()):
        counts = {"NaN": counted["nan"], "infinite": counted["infinite"]}
        shown = " and ".join(f"{count:,} {word}" for word, count in counts.items() if count)
        message = f"the {counted['kind']} `{name}` has {shown} of {counted['elements']:,} elements"
        yield Problem(message, hint="find their cause, such as a step of the training or a dtype that is too small")


_RANDOM = frozenset(
    f"aten::{name}"
    for name in (
        "bernoulli",
        "multinomial",
        "native_dropout",
        "normal",
        "rand",
        "rand_like",
        "randint",
        "randint_like",
        "randn",
        "randn_like",
        "randperm",
    )
)
"""The operators that draw random numbers, under the names in the lowered program."""


def _random(lowering: LoweringFacts, lines: SourceLines) -> Iterator[Problem]:
    for method, counts in sorted(lowering["operators"].items()):
        called = {name for taken in (counts["fallback"], *counts["delegated"].values()) for name in taken}
        for operator in sorted(called & _RANDOM):
            message = f"`{method}` draws random numbers with `{operator}`, so that every call gives another result"
            if operator == "aten::native_dropout":
                hint = "if this is not intended, write `dropout(x, training=self.training)`, or use `torch.nn.Dropout`"
            else:
                hint = "if this is not intended, make the numbers an input of the method"
            where = source_lines.shown(lines.of_operator(method, operator))
            yield Problem(message, ("methods", method), hints(hint, where))


def _runtime_limits(lowering: LoweringFacts, lines: SourceLines) -> Iterator[Problem]:
    """The limits of the runtime. A hint has a second line if lines of the sources are known."""
    for limit in lowering["runtime_limits"]:
        at = lines.of_operator(limit["method"], limit["operator"])
        where = source_lines.shown(at)
        if len(at) > 1:  # only some of these calls may be wrong
            where = f"calls of `{limit['operator']}`:\n{where}"
        message = f"ExecuTorch's runtime cannot run all of `{limit['method']}`: {limit['what']}"
        yield Problem(message, ("methods", limit["method"]), hints(limit["hint"], where))


def _measure(check: str, limit: Any, lowering: LoweringFacts) -> Iterator[CheckResult]:
    actual = _MEASURES[check](lowering)
    if isinstance(limit, dict):
        for name, bound in sorted(limit.items()):
            yield {"check": check, "of": name, "limit": bound, "actual": actual[name]}
    elif check.startswith("max_named_data"):
        yield {"check": check, "limit": limit, "actual": sum(actual.values())}
    elif isinstance(actual, dict):
        for name, value in sorted(actual.items()):
            yield {"check": check, "of": name, "limit": limit, "actual": value}
    else:
        yield {"check": check, "limit": limit, "actual": actual}


def _holds(entry: CheckResult) -> bool:
    if entry["check"].startswith("max_"):
        return bool(entry["actual"] <= entry["limit"])
    return bool(entry["actual"] >= entry["limit"])


def _problem(entry: CheckResult, wanted: Mapping[str, object], lowering: LoweringFacts, lines: SourceLines) -> Problem:
    check, of = entry["check"], entry.get("of")
    by_name = isinstance(wanted[check], dict)
    path: DocumentPath = ("checks", check, entry["of"]) if by_name else ("checks", check)
    named = f" `{of}`" if check == "max_named_data_bytes" and of else f"`{of}`" if of else ""
    actual, limit = entry["actual"], entry["limit"]
    message = _WORDS[check].format(of=named, actual=actual, limit=limit, percent=100 * actual, least=100 * limit)
    hint = _HINTS[check].format(largest=_largest_duplicate(lowering))
    if check == "min_delegated":
        hint = "\n".join([hint, *refusals.told(entry["of"], lowering["graphs"].get(entry["of"]), lines)])
    return Problem(message, path, hint)


def _largest_duplicate(lowering: LoweringFacts) -> str:
    duplicates = lowering["sharing"]["duplicates"]
    return f"`{duplicates[0]['weight']}` is held by {' and by '.join(duplicates[0]['readers'])}" if duplicates else ""


def _program_bytes(lowering: LoweringFacts) -> int:
    return sum(int(artifact["size"]) for artifact in lowering["artifacts"] if artifact["kind"] == "program")


def _named_data_bytes(lowering: LoweringFacts) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for artifact in lowering["artifacts"]:
        if "tag" in artifact:
            sizes[artifact["tag"]] = sizes.get(artifact["tag"], 0) + artifact["size"]
    return sizes


def _memory_bytes(lowering: LoweringFacts) -> dict[str, int]:
    methods = lowering["program"]["methods"]
    return {name: sum(methods[name]["memory"]) for name in lowering["operators"]}


def _delegated(lowering: LoweringFacts) -> dict[str, float]:
    """The fraction of each method's operators that backends took; 1 if it has no operators."""
    fractions = {}
    for name, operators in lowering["operators"].items():
        taken = sum(sum(counts.values()) for counts in operators["delegated"].values())
        total = taken + sum(operators["fallback"].values())
        fractions[name] = taken / total if total else 1.0
    return fractions


_FINDERS: dict[str, Callable[[LoweringFacts, SourceLines], Iterator[Problem]]] = {
    "deterministic": _random,
    "finite": _non_finite,
    "runtime": _runtime_limits,
}
_MEASURES: dict[str, Callable[[LoweringFacts], Any]] = {
    "max_program_bytes": _program_bytes,
    "max_named_data_bytes": _named_data_bytes,
    "max_duplicate_bytes": lambda lowering: lowering["sharing"]["duplicate_bytes"],
    "max_memory_bytes": _memory_bytes,
    "min_delegated": _delegated,
}
