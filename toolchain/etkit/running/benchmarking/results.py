"""The results of a benchmark, as data, as tables, and as text."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from etkit.running.benchmarking import inputs, intervals
from etkit.running.benchmarking.intervals import Verdict
from etkit.running.benchmarking.runs import Run, Timing
from etkit.running.benchmarking.workloads import Workload
from etkit.tables import duration, size, table
from etplugins.runtime.program_files import ProgramFiles

SCHEMA = "executorch-benchmark/v1"
_QUANTILES = {"min": 0.0, "median": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}

_SOURCES = {
    "manifest": "the examples of the manifest",
    "options": "those of --input",
    "sizes": "random numbers in the sizes of --dim",
    "random": "random numbers in the largest sizes that the program takes; integers are 0",
}


@dataclass(frozen=True)
class Phase:
    """Calls of one kind.

    Attributes:
        name: The method; `prefill` or `decode` of a decoder.
        method: The method.
        tokens: The tokens of a call of a decoder; 0 for another program.
        inputs: The inputs of the first call.
        workload: What they are part of.
        runs: The runs of each program.
    """

    name: str
    method: str
    tokens: int
    inputs: Sequence[Any]
    workload: Workload
    runs: Sequence[Sequence[Run]]

    def times(self, program: int) -> list[float]:
        """The seconds of all calls of a program."""
        return [time for run in self.runs[program] for time in run.seconds[self.name]]

    def medians(self, program: int) -> list[float]:
        """The median of the seconds of a call, in each run of a program."""
        return [statistics.median(run.seconds[self.name]) for run in self.runs[program]]

    @property
    def title(self) -> str:
        """The name of the phase for people."""
        return f"{self.name} ({self.tokens} tokens)" if self.tokens > 1 else self.name

    @property
    def verdict(self) -> Verdict | None:
        """The verdict about the first program against the other one; None if there is only one."""
        return intervals.verdict(self.medians(0), self.medians(1)) if len(self.runs) > 1 else None


def phases(workload: Workload, runs: Sequence[Sequence[Run]]) -> list[Phase]:
    """The phases of a workload."""
    first = {call.phase: call for call in reversed(workload.calls)}
    return [
        Phase(name, first[name].method, first[name].tokens, first[name].inputs, workload, runs)
        for name in dict.fromkeys(call.phase for call in workload.calls)
    ]


# JSON


def as_json(
    programs: Sequence[ProgramFiles], found: Sequence[Phase], timing: Timing, machine: Mapping[str, Any]
) -> dict[str, Any]:
    """The results as JSON data, as `schemas/benchmark.schema.json` describes it."""
    roles = ("program", "against")
    heads = {
        role: {"file": files.program.name, "size": files.facts["size"], "sha256": files.facts["sha256"]}
        for role, files in zip(roles, programs, strict=False)
    }
    settings = {key: getattr(timing, key) for key in ("runs", "seconds", "calls", "warm_up", "seed")}
    measured = []
    for phase in found:
        verdict = phase.verdict
        of_programs = {
            role: _measured(phase, number, files)
            for number, (role, files) in enumerate(zip(roles, programs, strict=False))
        }
        compared = {} if verdict is None else {"verdict": {"outcome": verdict.outcome, **asdict(verdict)}}
        measured.append({**_calls(phase), **of_programs, **compared})
    return {"schema": SCHEMA, **heads, "machine": dict(machine), "settings": settings, "phases": measured}


def _calls(phase: Phase) -> dict[str, Any]:
    """The calls that are measured: their method, inputs, and positions in a cache."""
    decoder = phase.workload.decoder
    facts: dict[str, Any] = {
        "phase": phase.name,
        "method": phase.method,
        "inputs": [*map(inputs.describe, phase.inputs)],
        "inputs_from": phase.workload.source,
    }
    if decoder is not None:
        start, count = (0, decoder.prompt) if phase.name == "prefill" else (decoder.prompt, decoder.new)
        facts.update(tokens=phase.tokens, positions=[start, start + count - 1])
    return facts


def _measured(phase: Phase, program: int, files: ProgramFiles) -> dict[str, Any]:
    times, runs = sorted(phase.times(program)), phase.runs[program]
    means = intervals.signed_rank([statistics.fmean(run.seconds[phase.name]) for run in runs])
    latency: dict[str, Any] = {name: intervals.quantile(times, share) for name, share in _QUANTILES.items()}
    latency["mean"] = statistics.fmean(times)
    latency["mean_interval"] = None if means is None else [means.low, means.high]
    memory = {key: _typical([getattr(run, key) for run in runs]) for key in ("peak", "kept")}
    memory["planned"] = sum(sum(files.facts["methods"][method]["memory"]) for method in phase.workload.inputs)
    return {
        "calls": len(times),
        "latency": latency,
        **({"tokens_per_second": phase.tokens / latency["mean"]} if phase.tokens else {}),
        "load": {key: statistics.median(getattr(run, f"load_{key}") for run in runs) for key in ("program", "methods")},
        "memory": memory,
        "threads": runs[0].threads,
        "medians": phase.medians(program),
    }


def _typical(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return int(statistics.median(known)) if known else None


# Text


def text(found: Mapping[str, Any]) -> str:
    """Two tables for people: times, and loading and memory. Below them, what was measured, and the comparisons.

    Args:
        found: What `as_json` returned.
    """
    several = "against" in found
    times: list[tuple[str, ...]] = [
        ("calls of", "count", "min", "median", "p90", "p99", "max", "mean (95 % interval)", "tokens/s")
    ]
    costs: dict[str, tuple[str, ...]] = {}
    for phase in found["phases"]:
        for role in ("program", "against") if several else ("program",):
            name = phase["phase"] + (f" ({phase['tokens']} tokens)" if phase.get("tokens", 0) > 1 else "")
            file = f" of {found[role]['file']}" + (" (other)" if role == "against" else "") if several else ""
            times.append((name + file, *_times(phase[role])))
            cost = (phase["method"] if "tokens" not in phase else "the decoder") + file
            costs.setdefault(cost, (cost, *_costs(phase[role])))
    if all(not row[-1] for row in times[1:]):
        times = [row[:-1] for row in times]
    heading = ("process of", "load program", "load method", "peak memory", "kept", "planned memory", "threads")
    return "\n".join([table(times), "", table([heading, *costs.values()]), "", *_notes(found), *_verdicts(found)])


def _times(measured: Mapping[str, Any]) -> Iterator[str]:
    latency = measured["latency"]
    yield str(measured["calls"])
    for name in _QUANTILES:
        yield duration(latency[name])
    interval = latency["mean_interval"]
    yield duration(latency["mean"]) + (f" ({duration(interval[0])} to {duration(interval[1])})" if interval else "")
    yield f"{measured['tokens_per_second']:,.0f}" if "tokens_per_second" in measured else ""


def _costs(measured: Mapping[str, Any]) -> Iterator[str]:
    load, memory = measured["load"], measured["memory"]
    yield from (duration(load["program"]), duration(load["methods"]))
    for name in ("peak", "kept", "planned"):
        yield "unknown" if memory[name] is None else size(memory[name])
    yield str(measured["threads"])


def _notes(found: Mapping[str, Any]) -> list[str]:
    """Lines that say what was measured."""
    machine, settings = found["machine"], found["settings"]
    lines = [
        f"{settings['runs']} processes each, on {machine['processor']} ({machine['processors']} processors), "
        f"ExecuTorch {machine['executorch']}"
    ]
    by_source: dict[str, list[str]] = {}
    for each in found["phases"]:
        if "positions" in each:
            start, end = each["positions"]
            lines.append(f"{each['phase']}: `{each['method']}` at the positions {start} to {end} of its cache")
        elif each["inputs"]:
            by_source.setdefault(each["inputs_from"], []).append(each["phase"])
    lines += [f"inputs of {', '.join(names)}: {_SOURCES[source]}" for source, names in by_source.items()]
    if "against" in found and found["program"]["sha256"] == found["against"]["sha256"]:
        lines.append("both programs have the same bytes")
    return lines


def _verdicts(found: Mapping[str, Any]) -> list[str]:
    """A line for each comparison."""
    return [
        f"{each['phase']}: {Verdict(*(each['verdict'][key] for key in ('change', 'low', 'high')))}"
        for each in found["phases"]
        if "verdict" in each
    ]
