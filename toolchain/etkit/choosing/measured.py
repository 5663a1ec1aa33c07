"""Measures programs on samples: how near they are to the model in eager PyTorch, without a variant."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild.errors import InputError
from etbuild.files.digests import digest, file_digest
from etkit.building.programs import Candidate
from etplugins.model_tests.parts import Agreement, TestPlan, tests_of

if TYPE_CHECKING:
    from etkit.local.build import BuildOptions
    from etkit.local.cache.store import Cache

Measured = tuple[str, str, dict[str, float]]
"""The state, what was measured for people, and the numbers: `mean` and `worst`."""
_STEP, _FILE = "agreed", "agreed.json"


def agreements(wanted: Sequence[Agreement], candidate: Candidate, base: Candidate, how: BuildOptions) -> list[Measured]:
    """Measures a program against the model of another one, which is run in eager PyTorch without quantization.

    What is known from an earlier command comes from the cache.

    Args:
        wanted: What to measure.
        candidate: The program.
        base: The program whose model, samples and example inputs are used.
        how: Where and how builds run.

    Raises:
        InputError: An output cannot be measured, or the runtime here has no backend that the program calls.
        BuildError: The model or the program cannot be run.
    """
    from etbuild.processes import forked

    tests = _tests(wanted, base)
    key = _key(tests, candidate, base)
    cache = None if any(":" in each.measure for each in wanted) else how.cache  # no key has what a callable reads
    if cache is not None and (known := _known(cache, key)) is not None:
        return known
    how.restart()  # then a crash of the runtime is reported as an error
    what = f"measuring {candidate.plan.name}"
    found: list[Measured] = forked.run({what: partial(_measure, tests, candidate, base, how)}, 1)[what]
    if cache is not None:
        with tempfile.TemporaryDirectory() as scratch:
            Path(scratch, _FILE).write_text(json.dumps(found), "utf-8")
            cache.store(_STEP, key, Path(scratch), [_FILE])
    return found


def _tests(wanted: Sequence[Agreement], base: Candidate) -> TestPlan:
    """What is tested: nothing of the manifest of the model but its samples."""
    tests = tests_of(base.manifest.data, base.plan.methods)
    used = {name for name in tests.sampled.values() if name in tests.samples}
    samples = {name: each for name, each in tests.samples.items() if name in used}
    return tests.replace(
        cases={},
        metrics=(),
        text=None,
        agreements=tuple(wanted),
        samples=samples,
        labels={},
        methods={name: each.replace(random=0) for name, each in tests.methods.items()},
    )


def _known(cache: Cache, key: str) -> list[Measured] | None:
    with tempfile.TemporaryDirectory() as scratch:
        if cache.fetch(_STEP, key, Path(scratch)) is None:
            return None
        return [(state, detail, numbers) for state, detail, numbers in json.loads(Path(scratch, _FILE).read_bytes())]


def _key(tests: TestPlan, candidate: Candidate, base: Candidate) -> str:
    """A digest of all that the results depend on. The keys of the programs have the model, its data and the packages;
    another processor may round otherwise."""
    from etbuild.key.distributions import environment
    from etbuild.version import VERSION

    code = sorted(file for folder in ("choosing", "running/testing") for file in (_KIT / folder).glob("*.py"))
    return digest(
        {
            "schema": "executorch-agreed-key/v1",
            "programs": [candidate.key, base.key],
            "agreements": [each.to_json() for each in tests.agreements],
            "sampled": tests.sampled,
            "driver": [VERSION, *map(file_digest, code)],
            "environment": environment(),
            "processor": _processor(),
        }
    )


_KIT = Path(__file__).parents[1]


def _processor() -> list[str]:
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return []
    return sorted({line for line in text.splitlines() if re.match(r"(model name|flags|Features)\s*:", line)})


def _measure(tests: TestPlan, candidate: Candidate, base: Candidate, how: BuildOptions) -> list[Measured]:
    """Runs in a process of its own: code of a model may change it."""
    from etbuild.steps.lowering_options import processors
    from etkit.running.testing.run import TestOptions, opened
    from etplugins.runtime import program_files

    files = program_files.read(candidate.program)
    options = TestOptions(locate=False, stage=how.stage, at_once=processors())
    with opened(base.plan, tests, files, base.inputs, options) as tester:
        if missing := tester.unavailable():
            message = f"the runtime here has no backend `{missing[0]}`, which {files.program.name} calls"
            raise InputError.of(message, "what it computes can be measured only on its device")
        found: list[Any] = [tester.agree(each) for each in tests.agreements]
    return [(each.state, each.detail, each.measured) for each in found]
