"""The value of a manifest's check that `etbuild watch` compares programs by."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from etbuild.errors import BuildError, InputError

if TYPE_CHECKING:
    from etbuild.key.declared import Inputs
    from etbuild.manifest.validate import Manifest
    from etplugins.model_tests.parts import Agreement, Metric

_VALUES = {"metric": "value", "agreement": "mean"}  # what a check measures, by its kind


def falls(loaded: Manifest, check: str) -> bool:
    """Whether less of what a check measures is better. Its limit says it.

    Args:
        loaded: The manifest.
        check: `metric` or `agreement`.

    Raises:
        InputError: The manifest has no such check.
    """
    found = _first(loaded, check)
    if check == "metric":
        return getattr(found, "max", None) is not None
    return getattr(found, "max_mean", None) is not None or getattr(found, "max_worst", None) is not None


def score(loaded: Manifest, given: Inputs, program: Path, check: str) -> float:
    """What the first check of this kind measures with a program.

    Raises:
        InputError: The manifest has no such check.
        BuildError: It cannot be measured.
    """
    from etbuild.plan.plan import from_manifest
    from etkit.running.testing.run import TestOptions, run
    from etplugins.model_tests.parts import tests_of
    from etplugins.runtime import program_files

    _first(loaded, check)
    plan = from_manifest(loaded.data)
    how = TestOptions(pattern=f"checks/{check}/*", locate=False, positions=loaded.positions)
    result = run(plan, tests_of(loaded.data, plan.methods), program_files.read(program), given, how)[0]
    if _VALUES[check] not in result.measured:
        raise BuildError.of(f"`checks.{check}` could not be measured: {result.detail}")
    return result.measured[_VALUES[check]]


def _first(loaded: Manifest, check: str) -> Metric | Agreement:
    from etbuild.plan.plan import from_manifest
    from etplugins.model_tests.parts import tests_of

    tests = tests_of(loaded.data, from_manifest(loaded.data).methods)
    found: list[Metric | Agreement] = [*(tests.metrics if check == "metric" else tests.agreements)]
    if not found:
        hint = 'for example `checks: {metric: {factory: "eval:top1", samples: photos, min: 0.9}}`'
        raise InputError.at(("checks",), f"--keep-best {check}: the manifest has no `checks.{check}`", hint)
    return found[0]
