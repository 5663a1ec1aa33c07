"""What `etbuild test` does, as typed values. No build reads it, so it is in no plan and in no key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from etbuild.errors import DocumentPath
from etbuild.manifest.model_tests import TEXT, metrics
from etbuild.manifest.sections import Case, Checks, Manifest, Options, Tests
from etbuild.plan.part import Part
from etbuild.plan.parts import (
    Example,
    FileExample,
    Leaf,
    Tolerance,
    callables_of,
    leaves_of,
    pairs,
)


class MethodTests(Part):
    """How one method is tested.

    Attributes:
        tolerance: The tolerance; None for that of the dtype of each output.
        tolerance_path: The place in the manifest that sets it; None if none does.
        random: The number of cases with random sizes.
        ranges: The smallest and the largest random number of the first inputs; None for the default.
        max_error: The largest difference to the model without quantization; None for no limit.
        min_sqnr: The smallest ratio of signal to error against the model without quantization, in decibels; None for no
            limit.
    """

    tolerance: Tolerance | None
    tolerance_path: DocumentPath | None
    random: int
    ranges: tuple[tuple[float, float] | None, ...]
    max_error: float | None
    min_sqnr: float | None


class CallSpec(Part):
    """A call of a method with inputs of the manifest."""

    path: DocumentPath
    method: str
    inputs: tuple[Example, ...] = ()
    kwargs: dict[str, Example] = {}

    @property
    def leaves(self) -> Iterator[tuple[Leaf, DocumentPath]]:
        """Every tensor and plain value, with its place in the manifest."""
        for index, example in enumerate(self.inputs):
            yield from leaves_of(example, (*self.path, "inputs", index))
        for name, example in self.kwargs.items():
            yield from leaves_of(example, (*self.path, "kwargs", name))


class Metric(Part):
    """A number that a callable of the declared sources computes with the program, and its limits.

    Attributes:
        path: Its place in the manifest.
        factory: The callable, as `module:callable`.
        data: The name of the declared input that it reads; None if there is none.
        kwargs: Its keyword arguments.
        min: The smallest value that passes; None for no limit.
        max: The largest value that passes; None for no limit.
        max_change: The largest difference to the value of the model without quantization; None for no limit.
    """

    path: DocumentPath
    factory: str
    data: str | None = None
    kwargs: Options = {}
    min: float | None = None
    max: float | None = None
    max_change: float | None = None


class TextTest(Part):
    """A text on which a language model is compared with transformers.

    Attributes:
        file: The name of the declared input.
        tokens: How many tokens at its beginning are read.
        max_perplexity: The largest perplexity of the program; None for no limit, here and below.
        max_perplexity_change: How much larger than that of transformers it may be, as a part of it.
        max_divergence: The largest mean divergence from the probabilities of transformers, in nats.
        min_same_choices: The smallest part of the tokens whose most likely next token is the same.
        min_equal_tokens: The smallest number of equal tokens that continue the beginning of the text.
    """

    file: str
    tokens: int = 512
    max_perplexity: float | None = None
    max_perplexity_change: float | None = None
    max_divergence: float | None = None
    min_same_choices: float | None = None
    min_equal_tokens: int | None = None


class TestPlan(Part):
    """What `etbuild test` runs.

    Attributes:
        methods: How each method is tested.
        seed: The seed of random inputs.
        cases: The calls of each case of the manifest, by name.
        metrics: The metrics.
        text: The text on which a language model is compared; None if there is none.
    """

    __test__ = False  # pytest: this is no test

    methods: dict[str, MethodTests]
    seed: int
    cases: dict[str, tuple[CallSpec, ...]]
    metrics: tuple[Metric, ...]
    text: TextTest | None

    @property
    def callables(self) -> list[tuple[str, DocumentPath]]:
        """Every `module:callable` that tests run, besides those of the build, with the places that name it."""
        leaves = (found for calls in self.cases.values() for call in calls for found in call.leaves)
        of_cases = [
            (name, (*place, "loader" if isinstance(leaf, FileExample) else "factory"))
            for leaf, place in leaves
            for name in callables_of([leaf])
        ]
        return of_cases + [(metric.factory, (*metric.path, "factory")) for metric in self.metrics]

    @property
    def data_names(self) -> dict[str, DocumentPath]:
        """The declared inputs that tests read, each with the place that names it first."""
        found: dict[str, DocumentPath] = {}
        for calls in self.cases.values():
            for call in calls:
                for leaf, place in call.leaves:
                    if isinstance(leaf, FileExample):
                        found.setdefault(leaf.file, (*place, "file"))
        for metric in self.metrics:
            if metric.data is not None:
                found.setdefault(metric.data, (*metric.path, "data"))
        if self.text is not None:
            found.setdefault(self.text.file, (*TEXT, "file"))
        return found


def tests_of(manifest: Manifest, methods: Iterable[str]) -> TestPlan:
    """What a checked manifest says about its tests, with every default.

    Args:
        manifest: The data of the manifest.
        methods: The names of the methods in its plan.
    """
    tests, checks = manifest.get("tests", {}), manifest.get("checks", {})
    return TestPlan(
        methods={name: _method(name, tests, checks) for name in sorted(methods)},
        seed=tests.get("seed", 0),
        cases={name: _calls(case, ("tests", "cases", name)) for name, case in tests.get("cases", {}).items()},
        metrics=tuple(Metric.from_json({**metric, "path": path}) for path, metric in metrics(checks).items()),
        text=TextTest.from_json(checks["text"]) if "text" in checks else None,
    )


def _method(name: str, tests: Tests, checks: Checks) -> MethodTests:
    own = tests.get("methods", {}).get(name, {})
    of_all: DocumentPath | None = ("tests", "tolerance") if "tolerance" in tests else None
    return MethodTests(
        tolerance=Tolerance.of_manifest(own.get("tolerance", tests.get("tolerance"))),
        tolerance_path=("tests", "methods", name, "tolerance") if "tolerance" in own else of_all,
        random=own.get("random", tests.get("random", 1)),
        ranges=pairs(own.get("ranges", [])),
        max_error=_of_method(checks.get("max_error"), name),
        min_sqnr=_of_method(checks.get("min_sqnr"), name),
    )


def _of_method(bound: float | dict[str, float] | None, name: str) -> float | None:
    return bound.get(name) if isinstance(bound, dict) else bound


def _calls(case: Case, path: DocumentPath) -> tuple[CallSpec, ...]:
    places = {(*path, "calls", index): call for index, call in enumerate(case.get("calls", []))} or {path: case}
    return tuple(CallSpec.from_json({**call, "path": place}) for place, call in places.items())
