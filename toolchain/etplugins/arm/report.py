"""Reports what Vela estimates of methods, and checks it against `checks.vela` of the manifest."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from etbuild.errors import CheckError, Problem
from etbuild.plan.plan import Plan
from etbuild.report.parts import Added, Reported
from etbuild.results import CheckResult

_NAME, _DELEGATE = "ethos-u", "EthosUBackend"
_SHOWN = {
    "cycles": "{:,.0f} cycles",
    "milliseconds": "{:,.6g} ms",
    "sram_bytes": "{:,.0f} bytes of SRAM",
    "dram_bytes": "{:,.0f} bytes of DRAM",
    "flash_bytes": "{:,.0f} bytes of flash",
}
_HINT = "the options of `ethos-u` describe the system, such as `memory_mode`; if this is intended, raise the limit"


def report(program: Reported) -> Added:
    """What Vela estimates: a note for each method, and figures for the report and the index."""
    found = _estimates(program)
    notes = [Problem(_note(name, figures)) for name, figures in found.items()]
    return Added(notes=notes, content={"vela": found} if found else {}, indexed=("vela",) * bool(found))


def check(program: Reported) -> Added:
    """Compares what Vela estimates with the limits of the manifest.

    Raises:
        CheckError: An estimate is larger than its limit, or Vela compiled nothing of a method with a limit.
    """
    found = _estimates(program)
    limits: Mapping[str, Any] = program.plan.checks["vela"]
    checks, problems = list[CheckResult](), list[Problem]()
    for key, limit in sorted(limits.items()):
        for name in limit if isinstance(limit, dict) else _running(program.plan, found):
            path = ("checks", "vela", key, *([name] if isinstance(limit, dict) else []))
            most = limit[name] if isinstance(limit, dict) else limit
            if name not in found:
                hint = "Ethos-U takes only integer operators: quantize the method with `ethos-u`"
                problems.append(Problem(f"Vela compiled nothing of `{name}`, so it has no estimate", path, hint))
                continue
            actual = found[name][key]
            checks.append({"check": f"vela.{key}", "of": name, "limit": most, "actual": actual})
            if actual > most:
                message = f"Vela estimates {_SHOWN[key].format(actual)} for `{name}`; the limit is {most:,}"
                problems.append(Problem(message, path, _HINT))
    CheckError.raise_if(problems)
    return Added(checks=checks)


def _estimates(program: Reported) -> dict[str, Mapping[str, float]]:
    graphs = program.lowering["graphs"]
    found = {name: graph.get("estimates", {}).get(_DELEGATE, {}) for name, graph in sorted(graphs.items())}
    return {name: figures for name, figures in found.items() if figures.get("delegates")}


def _running(plan: Plan, found: Collection[str]) -> list[str]:
    """The methods that Vela compiled or should have compiled: all, if it compiled none and no list says which."""
    of_recipe = plan.recipe is not None and _NAME in plan.recipe.backends
    said = {
        name
        for name, method in plan.methods.items()
        if _NAME in {entry.backend for entry in method.partitioners}
        or (of_recipe and "partitioners" in method.from_recipe)
    }
    return sorted({*found, *said} or plan.methods)


def _note(name: str, figures: Mapping[str, float]) -> str:
    several = f" for {figures['delegates']:.0f} delegates" if figures["delegates"] > 1 else ""
    shown = [text.format(figures[key]) for key, text in _SHOWN.items() if figures[key]]
    return f"Vela's estimate of `{name}`{several}: {', '.join(shown)} at {figures['hertz'] / 1e6:,.0f} MHz"
