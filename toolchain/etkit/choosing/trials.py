"""Tries schemes: builds each, and measures its size, its agreement, its latency and its memory."""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from etbuild.errors import EtbuildError, printable
from etkit.building.programs import Candidate, Wanted, build_each
from etkit.choosing import measured
from etkit.choosing.judge import planned_bytes, shipped_bytes
from etkit.choosing.schemes import BASE, Scheme, schemes, without_limits
from etplugins.model_tests import parts
from etplugins.model_tests.parts import Agreement

if TYPE_CHECKING:
    from etbuild.key.declared import Inputs
    from etbuild.manifest.validate import Manifest
    from etkit.local.build import BuildOptions

_RUNS = 4  # processes of a method
_NEAR = 0.05  # the part by which two times may differ by chance
_LESS_IS_BETTER = ("error", "distance")
_LONGEST = 300  # characters of a reason


@dataclass(frozen=True)
class Value:
    """An agreement that was measured.

    Attributes:
        mean: The mean over the samples.
        worst: The value of the worst sample.
        falls: Whether less is better.
        passed: Whether it has the limits of the manifest.
    """

    mean: float
    worst: float
    falls: bool
    passed: bool

    @property
    def cost(self) -> float:
        """A number that is smaller for a better program."""
        return self.mean if self.falls else -self.mean


@dataclass(frozen=True)
class Trial:
    """A scheme that was tried.

    Attributes:
        scheme: The scheme.
        size: The bytes of the program and its named data; None if it was not built.
        memory: The planned memory of the method that needs most, in bytes.
        agreements: What was measured, by its name.
        latency: The sum of the median seconds of one call of each method; None if it was not measured.
        reason: Why it was not built or measured; empty if all is known.
        is_best: Whether it has the limits of the manifest, and no other such scheme is better in something and at
            least as good in all.
    """

    scheme: Scheme
    size: int | None = None
    memory: int | None = None
    agreements: Mapping[str, Value] = field(default_factory=dict)
    latency: float | None = None
    reason: str = ""
    is_best: bool = False


@dataclass(frozen=True)
class Tuning:
    """What is tried.

    Attributes:
        manifest: The manifest.
        inputs: The sources and data.
        how: How builds run.
        seconds: How long the calls of a scheme are measured; None to measure no times.
        only: The names of the schemes that are tried beside float32; empty for all.
    """

    manifest: Manifest
    inputs: Inputs
    how: BuildOptions
    seconds: float | None
    only: Sequence[str] = ()


def tried(tuning: Tuning) -> list[Trial]:
    """Tries the schemes that fit a manifest.

    Raises:
        EtbuildError: No scheme fits, or the program cannot be built in float32, with which all are compared.
    """
    data: Any = tuning.manifest.data
    found = [each for each in schemes(data) if each.name == BASE or not tuning.only or each.name in tuning.only]
    with tempfile.TemporaryDirectory(prefix="etbuild-tune-") as scratch:
        programs, errors = _programs(data, found, tuning, Path(scratch, "manifest.yaml"))
        outcome = build_each([*programs.values()], Path(scratch, "out"), tuning.how, go_on=True)
        errors |= {name: outcome.errors[each.name] for name, each in programs.items() if each.name in outcome.errors}
        if BASE in errors:
            raise errors[BASE]
        built = {name: outcome.candidates[each.name] for name, each in programs.items() if name not in errors}
        trials = [
            _trial(each, built[each.name], built[BASE], tuning)
            if each.name in built
            else Trial(each, reason=_said(errors[each.name]))
            for each in found
        ]
    return marked(trials)


def _programs(
    data: Mapping[str, Any], found: Sequence[Scheme], tuning: Tuning, path: Path
) -> tuple[dict[str, Wanted], dict[str, EtbuildError]]:
    """The programs to build by the names of schemes, and the errors of the manifests of others."""
    from etbuild.manifest import validate

    whole = {**without_limits(data), "variants": {each.name: each.patch for each in found}}
    path.write_text(yaml.safe_dump(whole, sort_keys=False, allow_unicode=True), "utf-8")
    programs, errors = dict[str, Wanted](), dict[str, EtbuildError]()
    for each in found:
        try:
            [loaded] = validate.load_each(path, f"the manifest with `{each.name}`", [each.name])
            programs[each.name] = Wanted(loaded, tuning.inputs)
        except EtbuildError as error:
            errors[each.name] = error
    if BASE in errors:
        raise errors[BASE]
    return programs, errors


def _trial(scheme: Scheme, candidate: Candidate, base: Candidate, tuning: Tuning) -> Trial:
    """Measures a program that was built."""
    place = candidate.directory, candidate.plan.name
    trial = Trial(scheme, shipped_bytes(*place), planned_bytes(*place))
    try:
        trial = replace(trial, agreements=_agreements(candidate, base, tuning))
        if tuning.seconds is not None:
            trial = replace(trial, latency=_latency(candidate, tuning, tuning.seconds))
    except EtbuildError as error:
        return replace(trial, reason=f"not measured: {_said(error)}")
    return trial


def _said(error: EtbuildError) -> str:
    said = printable("; ".join(dict.fromkeys(problem.message.partition("\n")[0] for problem in error.problems)))
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]}..."


def _agreements(candidate: Candidate, base: Candidate, tuning: Tuning) -> dict[str, Value]:
    """What the manifest measures on samples; without it, the SQNR of each method."""
    checks: Any = tuning.manifest.data.get("checks", {})
    wanted = [Agreement.from_json({**each, "path": path}) for path, each in parts.agreements(checks).items()]
    if not wanted:
        wanted = [
            Agreement(path=("methods", name), measure="sqnr", method=name, output=parts.ALL_OUTPUTS)
            for name in sorted(base.plan.methods.keys() & candidate.plan.methods.keys())
        ]
    found = measured.agreements(wanted, candidate, base, tuning.how)
    values: dict[str, Value] = {}
    several = len({each.method for each in wanted}) > 1
    for each, (state, _, numbers) in zip(wanted, found, strict=True):
        falls = each.max_mean is not None or each.max_worst is not None or each.measure in _LESS_IS_BETTER
        name = f"{each.measure} {each.method}" if several else each.measure
        name = name if name not in values else f"{name} {len(values)}"
        values[name] = Value(numbers["mean"], numbers["worst"], falls, state == "passed")
    return values


def _latency(candidate: Candidate, tuning: Tuning, seconds: float) -> float:
    """The seconds of one call of each method, as `etbuild bench` measures them."""
    from etkit.running.benchmarking import inputs, runs
    from etkit.running.benchmarking.workloads import Workload, is_constant
    from etplugins.runtime import program_files

    files = program_files.read(candidate.program)
    runs.check_backends([files])
    plan, stage = candidate.plan, tuning.how.stage
    tests = parts.tests_of(candidate.manifest.data, plan.methods)
    known = inputs.of_manifest(plan, tests, candidate.inputs, {}, stage)
    timing = runs.Timing(runs=_RUNS, seconds=seconds, calls=None, warm_up=2, threads=None, seed=0, stage=stage)
    total = 0.0
    for name, facts in sorted(files.facts["methods"].items()):
        if name in known and not is_constant(facts):
            workload = Workload({name: known[name]}, "manifest")
            [measurements] = runs.measure([files], workload, timing)
            total += statistics.median(time for run in measurements for time in run.seconds[name])
    return total


def marked(trials: Sequence[Trial]) -> list[Trial]:
    """The trials, of which those are marked that no other one beats."""
    known = [each for each in trials if each.size is not None and each.agreements and _is_usable(each)]
    return [replace(each, is_best=each in known and not any(_beats(other, each) for other in known)) for each in trials]


def _is_usable(trial: Trial) -> bool:
    """Whether a program has the limits of the manifest, and its outputs are numbers."""
    return all(value.passed and value.cost < math.inf for value in trial.agreements.values())  # NaN is not less


def _beats(one: Trial, other: Trial) -> bool:
    """Whether a program is better in something, and at least as good in all."""
    pairs = [(float(one.size or 0), float(other.size or 0))]
    shared = one.agreements.keys() & other.agreements.keys()
    pairs += [(one.agreements[name].cost, other.agreements[name].cost) for name in sorted(shared)]
    if one.latency is not None and other.latency is not None:
        near = abs(one.latency - other.latency) <= _NEAR * other.latency
        pairs.append((0.0, 0.0) if near else (one.latency, other.latency))
    return all(own <= theirs for own, theirs in pairs) and any(own < theirs for own, theirs in pairs)
