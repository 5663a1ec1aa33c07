"""Checks the tests of a manifest, and what `etbuild test` measures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from etbuild.errors import DocumentPath, Problem, did_you_mean, unknown
from etbuild.manifest import example_inputs
from etbuild.manifest.example_inputs import CheckFile
from etbuild.manifest.mappings import mapping

_BOUNDS = ("min", "max", "max_change")


def check(data: dict[str, Any], methods: dict[str, Any], check_file: CheckFile) -> Iterator[Problem]:
    """Yields the problems of `tests` and of `checks.metric` that a schema cannot find.

    Args:
        data: The manifest. It may break the schema.
        methods: Its methods.
        check_file: Checks the name of a file.
    """
    tests = mapping(data, "tests")
    of_methods = mapping(tests, "methods")
    for name, hint in unknown(of_methods, methods):
        yield Problem(f"there is no method `{name}`", ("tests", "methods", name), hint, at_key=True)
    for name in of_methods:
        yield from _check_ranges(mapping(of_methods, name).get("ranges"), ("tests", "methods", name, "ranges"))
    cases = mapping(tests, "cases")
    for name in cases:
        yield from _check_case(mapping(cases, name), methods, ("tests", "cases", name), check_file)
    yield from _check_metrics(mapping(data, "checks").get("metric"), check_file)


def metrics(checks: dict[str, Any]) -> list[dict[str, Any]]:
    """The metrics of a manifest's `checks`."""
    found = checks.get("metric", [])
    return found if isinstance(found, list) else [found]


def _check_ranges(ranges: Any, path: DocumentPath) -> Iterator[Problem]:
    for index, each in enumerate(ranges if isinstance(ranges, list) else []):
        both = isinstance(each, list) and all(isinstance(number, (int, float)) for number in each)
        if both and len(each) == 2 and each[0] > each[1]:
            yield Problem(f"{each[0]} is larger than {each[1]}", (*path, index), "write the smallest number first")


def _check_case(
    case: dict[str, Any], methods: dict[str, Any], path: DocumentPath, check_file: CheckFile
) -> Iterator[Problem]:
    kinds = [key for key in ("method", "calls") if key in case]
    if len(kinds) != 1:
        got = "both" if kinds else "none of them"
        yield Problem(
            f"a case needs one of `method` and `calls`; this one has {got}", path, "for example method: forward"
        )
    elif kinds == ["calls"]:
        for key in ("inputs", "kwargs"):
            if key in case:
                yield Problem(f"`{key}` goes with `method`, not with `calls`", (*path, key), at_key=True)
        for index, call in enumerate(case["calls"] if isinstance(case["calls"], list) else []):
            if isinstance(call, dict):
                yield from _check_call(call, methods, (*path, "calls", index), check_file)
    else:
        yield from _check_call(case, methods, path, check_file)


def _check_call(
    call: dict[str, Any], methods: dict[str, Any], path: DocumentPath, check_file: CheckFile
) -> Iterator[Problem]:
    name = call.get("method")
    if isinstance(name, str) and name not in methods:
        yield Problem(f"there is no method `{name}`", (*path, "method"), did_you_mean(name, methods))
    inputs = call.get("inputs")
    for index, each in enumerate(inputs if isinstance(inputs, list) else []):
        yield from example_inputs.check_one(each, (*path, "inputs", index), check_file)
    for key, each in mapping(call, "kwargs").items():
        yield from example_inputs.check_one(each, (*path, "kwargs", key), check_file)


def _check_metrics(given: Any, check_file: CheckFile) -> Iterator[Problem]:
    several = isinstance(given, list)
    for index, metric in enumerate(given if several else [given]):
        path: DocumentPath = ("checks", "metric", index) if several else ("checks", "metric")
        if not isinstance(metric, dict):
            continue
        if not any(bound in metric for bound in _BOUNDS):
            yield Problem("a metric needs `min`, `max` or `max_change`", path, "for example min: 0.71")
        if isinstance(metric.get("data"), str) and metric["data"]:
            yield from check_file(metric["data"], (*path, "data"), True)
