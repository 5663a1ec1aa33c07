"""Checks the tests of a manifest, and the measurements of `etbuild test`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from etbuild.errors import DocumentPath, Problem, did_you_mean, unknown
from etbuild.manifest import example_inputs
from etbuild.manifest.file_names import check_example
from etbuild.manifest.plugin_sections import Section
from etbuild.manifest.sections import Manifest
from etplugins.model_tests.parts import LIMITS, PROMPTS, TEXT, agreements, metrics
from etplugins.model_tests.sections import Agreement, Call, Case, Tests, TextCheck

_CHECKS = ("agreement", "max_error", "min_sqnr", "metric", "prompts", "text")
_TEXT_LIMITS = ("max_perplexity", "max_perplexity_change", "max_divergence", "min_same_choices", "min_equal_tokens")


class TestsSection(Section):
    """The tests and measurements of `etbuild test`."""

    def check(self, manifest: Manifest) -> Iterator[Problem]:
        """Yields the problems of `tests` and of the `checks` of tests that a schema cannot find."""
        return _check(manifest, manifest.get("methods", {}))

    def normalized(self, manifest: Manifest) -> Manifest:
        """The manifest without the checks of tests, which no build reads."""
        checks: Any = {name: limit for name, limit in manifest.get("checks", {}).items() if name not in _CHECKS}
        return {**manifest, "checks": checks}


def _check(data: Manifest, methods: Collection[str]) -> Iterator[Problem]:
    tests, checks = data.get("tests") or Tests(), data.get("checks", {})
    of_methods = tests.get("methods", {})
    for name, hint in unknown(of_methods, methods):
        yield Problem(f"there is no method `{name}`", ("tests", "methods", name), hint, at_key=True)
    for name, settings in of_methods.items():
        for index, limits in enumerate(settings.get("ranges", [])):
            if limits is not None and limits[0] > limits[1]:
                path: DocumentPath = ("tests", "methods", name, "ranges", index)
                yield Problem(f"{limits[0]} is larger than {limits[1]}", path, "write the smallest number first")
    for name, case in tests.get("cases", {}).items():
        yield from _check_case(case, methods, ("tests", "cases", name))
    for check, by_method in (("max_error", checks.get("max_error")), ("min_sqnr", checks.get("min_sqnr"))):
        for name, hint in unknown(by_method if isinstance(by_method, dict) else (), methods):
            yield Problem(f"there is no method `{name}`", ("checks", check, name), hint, at_key=True)
    for path, metric in metrics(checks).items():
        if not {"min", "max", "max_change"} & metric.keys():
            yield Problem("a metric needs `min`, `max` or `max_change`", path, "for example min: 0.71")
        if "data" in metric:
            yield from check_example(metric["data"], (*path, "data"), True)
            if "samples" in metric:
                yield Problem("`samples` does not go with `data`", (*path, "samples"), at_key=True)
        if (named := metric.get("samples")) is not None and named not in data.get("samples", {}):
            hint = did_you_mean(named, data.get("samples", {}))
            yield Problem(f"there are no samples `{named}`", (*path, "samples"), hint)
    for path, agreement in agreements(checks).items():
        yield from check_agreement(agreement, data, path)
    if "text" in checks:
        yield from _check_text(data, checks["text"])
    if "prompts" in checks:
        yield from check_example(checks["prompts"]["file"], (*PROMPTS, "file"), True)
        yield from _check_language_model(data, PROMPTS, "answers prompts", "prompts need")


def check_agreement(agreement: Agreement, data: Manifest, path: DocumentPath) -> Iterator[Problem]:
    """Yields the problems of an agreement at a place of a manifest."""
    methods = data.get("methods", {})
    sampled = [name for name, method in methods.items() if "samples" in method]
    name = agreement.get("method")
    if name is not None and name not in methods:
        yield Problem(f"there is no method `{name}`", (*path, "method"), did_you_mean(name, methods))
    elif name is not None and name not in sampled:
        yield Problem(f"the method `{name}` has no samples", (*path, "method"), "add `samples: NAME` to it")
    elif name is None and len(sampled) != 1:
        what = f"{len(sampled)} methods have" if sampled else "no method has"
        yield Problem(f"the key `method` is missing: {what} `samples`", path, "for example method: forward")
    if not {*LIMITS} & agreement.keys():
        yield Problem(f"an agreement needs one of {', '.join(LIMITS)}", path, "for example min_mean: 0.95")
    if "kwargs" in agreement and ":" not in agreement["measure"]:
        yield Problem("`kwargs` goes with a callable in `measure`", (*path, "kwargs"), at_key=True)


def _check_text(data: Manifest, text: TextCheck) -> Iterator[Problem]:
    yield from check_example(text["file"], (*TEXT, "file"), True)
    if not {*_TEXT_LIMITS} & text.keys():
        names = ", ".join(f"`{name}`" for name in _TEXT_LIMITS)
        yield Problem(f"a text needs one of {names}", TEXT, "for example max_divergence: 0.05")
    yield from _check_language_model(data, TEXT, "is compared on a text", "a text needs")


def _check_language_model(data: Manifest, path: DocumentPath, does: str, needs: str) -> Iterator[Problem]:
    """Yields the problems of a model that is no language model with a runner and a tokenizer."""
    if "huggingface" not in data.get("model", {}) or data.get("runner") != "executorch-llm/v1":
        message = f"only a language model of `model.huggingface` with `runner: executorch-llm/v1` {does}"
        yield Problem(message, path, "for other models, `checks.metric` calls a function of yours", at_key=True)
    elif "tokenizer" not in data:
        yield Problem(f"{needs} the tokenizer of the model", path, "add `tokenizer: tokenizer.json`", at_key=True)


def _check_case(case: Case, methods: Collection[str], path: DocumentPath) -> Iterator[Problem]:
    kinds = [key for key in ("method", "calls") if key in case]
    if len(kinds) != 1:
        got = "both" if kinds else "none of them"
        message = f"a case needs one of `method` and `calls`; this one has {got}"
        yield Problem(message, path, "for example method: forward")
    elif "calls" in case:
        for key in ("inputs", "kwargs"):
            if key in case:
                yield Problem(f"`{key}` goes with `method`, not with `calls`", (*path, key), at_key=True)
        for index, call in enumerate(case["calls"]):
            yield from _check_call(call, methods, (*path, "calls", index))
    else:
        yield from _check_call(case, methods, path)


def _check_call(call: Call, methods: Collection[str], path: DocumentPath) -> Iterator[Problem]:
    if call["method"] not in methods:
        hint = did_you_mean(call["method"], methods)
        yield Problem(f"there is no method `{call['method']}`", (*path, "method"), hint)
    for index, example in enumerate(call.get("inputs", [])):
        yield from example_inputs.check_one(example, (*path, "inputs", index))
    for key, example in call.get("kwargs", {}).items():
        yield from example_inputs.check_one(example, (*path, "kwargs", key))
