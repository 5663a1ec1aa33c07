"""What `etbuild test` does: its sections of a manifest, and its plan. No build reads it, so it is in no key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from etbuild.errors import DocumentPath
from etbuild.manifest.sections import Checks, Manifest
from etbuild.plan.kinds import (
    MODULE,
    CallableName,
    Count,
    FileStem,
    Identifier,
    InputName,
    Options,
    Positive,
    RandomCases,
    Ranges,
    SomeTexts,
)
from etbuild.plan.part import PLAN_ONLY, Part, PluginKeys, Says
from etbuild.plan.parts import (
    Example,
    FileExample,
    Leaf,
    callables_of,
    leaves_of,
)
from etplugins.comparison.parts import Tolerance, pairs

if TYPE_CHECKING:
    from etplugins.model_tests import sections

FOLDER = "folder"
"""In place of the file with the labels of samples: the names of their folders."""
TEXT: DocumentPath = ("checks", "text")
PROMPTS: DocumentPath = ("checks", "prompts")
"""The places of a text and of prompts in a manifest."""


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


class Call(Part):
    """One call. For example `{method: decode, inputs: [{shape: [1, 1], dtype: int64}]}`.

    Attributes:
        path: Its place in the manifest.
        method: The method that is called. For example `decode`.
    """

    path: Annotated[DocumentPath, PLAN_ONLY]
    method: str
    inputs: Annotated[tuple[Example, ...], Says("testInputs", default=[])] = ()
    kwargs: Annotated[dict[str, Example], Says("testKwargs", default={})] = {}

    @property
    def leaves(self) -> Iterator[tuple[Leaf, DocumentPath]]:
        """Every tensor and plain value, with its place in the manifest."""
        for index, example in enumerate(self.inputs):
            yield from leaves_of(example, (*self.path, "inputs", index))
        for name, example in self.kwargs.items():
            yield from leaves_of(example, (*self.path, "kwargs", name))


class Metric(Part, definition="metric"):
    """A number that a callable computes with the program: `factory(program, data, **kwargs)`.
    `program.method(NAME)(*inputs)` calls a method and returns its outputs as a list of tensors. For example `{factory:
    "eval:top1", data: validation.safetensors, min: 0.71}`.

    Attributes:
        path: Its place in the manifest.
        factory: The callable in the declared sources. It returns a number. For example `"eval:top1"`.
        data: Name of a declared input; the callable gets its path, a `pathlib.Path`. Without it, the callable gets
            None. For example `validation.safetensors`.
        samples: The name of an entry of `samples`. In place of a path, the callable gets a list with an object for each
            of them: its `name`, its `inputs` (a tuple) and its `label` (a text, or None). For example `photos`.
        kwargs: Keyword arguments of `factory`. For example `{count: 100}`.
        min: The smallest value that passes. For example `0.71`.
        max: The largest value that passes. For example `12.5`.
        max_change: The largest difference to the value of the model in eager PyTorch without quantization. For example
            `0.01`.
    """

    path: Annotated[DocumentPath, PLAN_ONLY]
    factory: CallableName
    data: InputName | None = None
    samples: FileStem | None = None
    kwargs: Options = {}
    min: float | None = None
    max: float | None = None
    max_change: Positive | None = None


MEASURES = ("cosine", "sqnr", "psnr", "ssim", "top1", "top5", "argmax", "iou", "error", "distance", "depth")
"""The measures that need no code of the user."""


class Agreement(Part, definition="agreement"):
    """How near the program is to the model in eager PyTorch without quantization, in the unit of its task. It is
    measured for each of the method's `samples`. For example `{measure: top1, min_mean: 0.95}`.

    Attributes:
        path: Its place in the manifest.
        measure: `cosine` (of all numbers of an output), `sqnr` (their ratio of signal to error, in decibels), `psnr`
            and `ssim` (of pictures), `top1` and `top5` (whether the model's class is the program's, or among its first
            five), `argmax` (the part of places with the same class, over dimension 1), `iou` (of masks, which are where
            numbers are above 0), `error` (the mean absolute difference), `distance` (between points, over the last
            dimension), `depth` (the part of numbers within 1.25 times each other). Or a callable in the declared
            sources that gets the outputs of the model and those of the program, two lists of tensors, and returns a
            number. For example `top1`, `"eval:boxes"`.
        method: The method. Default: the only method with `samples`. For example `forward`.
        output: The number of the output that is measured, from 0. For example `1`.
        kwargs: Keyword arguments of the callable that `measure` names. For example `{threshold: 0.5}`.
        min_mean: The smallest mean over the samples that passes. For example `0.95`.
        min_worst: The smallest value of a sample that passes. For example `0.9`.
        max_mean: The largest mean over the samples that passes. For example `2.0`.
        max_worst: The largest value of a sample that passes. For example `5.0`.
    """

    path: Annotated[DocumentPath, PLAN_ONLY]
    measure: Annotated[str, Says(pattern=f"^({'|'.join(MEASURES)}|{MODULE}:{MODULE})$")]
    method: Identifier | None = None
    output: Count = 0
    kwargs: Options = {}
    min_mean: float | None = None
    min_worst: float | None = None
    max_mean: float | None = None
    max_worst: float | None = None


LIMITS = ("min_mean", "min_worst", "max_mean", "max_worst")
"""The limits of an agreement."""
ALL_OUTPUTS = -1
"""As the output of an agreement: the ratio of signal to error of the worst one. No manifest can write it."""
BASE = "base"
"""In `qualify`, the program without a variant."""


class PartOf(Part, definition="partOf"):
    """A limit relative to another program of the manifest. For example `{at_most: 0.95, of: base}`.

    Attributes:
        at_most: The largest part of the other program's value. For example `0.95`.
        of: The other program: `base`, which is the program without a variant, or a variant. For example `base`.
    """

    at_most: Annotated[float, Says(minimum=0, maximum=1000)]
    of: FileStem


class Least(Part, definition="least"):
    """A limit. For example `{at_least: 30}`.

    Attributes:
        at_least: The smallest value. For example `30`.
    """

    at_least: float


class Qualify(Part, minProperties=1):
    """What a variant must reach. For example `{size: {at_most: 0.95, of: base}, agreement: {measure: top1, min_mean:
    0.98}}`.

    Attributes:
        size: The size of the program with its named data. For example `{at_most: 0.95, of: base}`.
        memory: The memory that the method with the largest plan needs. For example `{at_most: 1.0, of: base}`.
        sqnr: The ratio of signal to error in decibels, in the worst sample of each method, or with its example inputs
            if it has no samples. The signal is what the model without a variant and without quantization computes. For
            example `{at_least: 30}`.
        agreement: How near the program is to the model without a variant and without quantization, as in
            `checks.agreement`. A list for several. For example `{measure: top1, min_mean: 0.98}`.
    """

    _LEFT_OUT = ("size", "memory", "sqnr", "agreement")

    size: PartOf | None = None
    memory: PartOf | None = None
    sqnr: Least | None = None
    agreement: Annotated[tuple[Agreement, ...], Says(one=True, minItems=1)] | None = None

    @classmethod
    def of_manifest(cls, given: Mapping[str, Any]) -> Qualify:
        """Reads the section of a checked manifest. Agreements get their places."""
        found = [{**each, "path": path} for path, each in placed(given.get("agreement", []), "qualify").items()]
        return cls.from_json({**given, **({"agreement": found} if found else {})})


class TextTest(Part, section="TextCheck"):
    """A text on which a language model is compared with transformers.

    Attributes:
        file: Name of a declared input: a text in UTF-8. For example `held_out.txt`.
        tokens: How many tokens at the beginning of the text are read. For example `4096`.
        max_perplexity: The largest perplexity of the program on the text. For example `12.5`.
        max_perplexity_change: How much larger the perplexity of the program may be than that of transformers, as a part
            of it: 0.05 is 5 percent. For example `0.05`.
        max_divergence: The largest mean divergence (Kullback-Leibler, in nats) of the program's probabilities of the
            next token from those of transformers. For example `0.05`.
        min_same_choices: For which part of the tokens the program finds the same next token the most likely one, at
            least. For example `0.95`.
        min_equal_tokens: How many tokens the program and transformers continue the beginning of the text with in the
            same way, at least. Both write 32 tokens, always the most likely one. For example `32`.
    """

    file: InputName
    tokens: Annotated[int, Says(minimum=2, maximum=10_000_000)] = 512
    max_perplexity: Annotated[float, Says(minimum=1)] | None = None
    max_perplexity_change: Positive | None = None
    max_divergence: Positive | None = None
    min_same_choices: Annotated[float, Says(minimum=0, maximum=1)] | None = None
    min_equal_tokens: Annotated[int, Says(minimum=0, maximum=32)] | None = None


class PromptsTest(Part, section="PromptsCheck"):
    """Prompts that the program of a language model answers: it gets them in the chat template of the tokenizer, and
    writes the most likely tokens.

    Attributes:
        file: Name of a declared input. Each line is a prompt as JSON, with the texts that its answer has to contain:
            `{"prompt": "Where is the Louvre?", "must_contain": ["Paris"]}`. For example `prompts.jsonl`.
        template: How a prompt becomes tokens. `chat`: as the first turn of a user, with the chat template of the
            tokenizer. For example `chat`.
        tokens: The largest number of tokens in an answer. For example `128`.
        must_contain: Texts that each answer has to contain, besides those of its line. For example `["."]`.
        min_same_choice: For which part of the prompts eager PyTorch, without quantization, chooses the same tokens as
            the program for the whole answer, at least. For example `0.9`.
    """

    file: InputName
    template: Annotated[Literal["chat"], Says(default="chat")] = "chat"
    tokens: Annotated[int, Says(minimum=1, maximum=100_000)] = 64
    must_contain: SomeTexts = ()
    min_same_choice: Annotated[float, Says(minimum=0, maximum=1)] | None = None


class TestsOfMethod(Part):
    """The settings of one method. For example `{random: 5, ranges: [[0, 255]]}`."""

    tolerance: Tolerance | None = None
    random: RandomCases | None = None
    ranges: Ranges | None = None


class Case(Call, needs=()):
    """One call, or several calls one after the other: `method` and its inputs, or `calls`. For example `{method:
    forward, inputs: [{file: cat.npy}]}`.

    Attributes:
        method: The method that is called. For example `forward`.
        calls: Calls one after the other. The program keeps its state from one to the next. For example `[{method:
            prefill, inputs: [{shape: [1, 5], dtype: int64}]}, {method: decode, inputs: [{shape: [1, 1], dtype:
            int64}]}]`.
    """

    calls: Annotated[tuple[Call, ...], Says(minItems=1)] | None = None


class Tests(Part):
    """What `etbuild test` runs.

    Attributes:
        seed: The seed of the random inputs. For example `7`.
        methods: Settings for single methods, by name. For example `{decode: {tolerance: {rtol: 0.01}}}`.
        cases: Calls with inputs of your own, by name. The program and the model begin each case with fresh state. For
            example `{cat: {method: forward, inputs: [{file: cat.png, loader: "images:load"}]}}`.
    """

    tolerance: Tolerance | None = None
    random: RandomCases | None = None
    seed: Count = 0
    methods: dict[str, TestsOfMethod] = {}
    cases: dict[FileStem, Case] = {}


class TestPlan(Part):
    """What `etbuild test` runs.

    Attributes:
        methods: How each method is tested.
        seed: The seed of random inputs.
        cases: The calls of each case of the manifest, by name.
        metrics: The metrics.
        text: The text on which a language model is compared; None if there is none.
        prompts: The prompts that a language model answers; None if there are none.
        agreements: What is measured on samples.
        samples: Lists of samples, by name.
        sampled: The name of the list of each method that has one.
        labels: The files with labels, which only metrics read, each with its place.
    """

    __test__ = False  # pytest: this is no test

    methods: dict[str, MethodTests]
    seed: int
    cases: dict[str, tuple[Call, ...]]
    metrics: tuple[Metric, ...]
    text: TextTest | None
    prompts: PromptsTest | None = None
    agreements: tuple[Agreement, ...] = ()
    samples: dict[str, Any] = {}
    sampled: dict[str, str] = {}
    labels: dict[str, DocumentPath] = {}

    @property
    def callables(self) -> list[tuple[str, DocumentPath]]:
        """Every `module:callable` that tests run, besides those of the build, with the places that name it."""
        leaves = (found for calls in self.cases.values() for call in calls for found in call.leaves)
        of_cases = [
            (name, (*place, "loader" if isinstance(leaf, FileExample) else "factory"))
            for leaf, place in leaves
            for name in callables_of([leaf])
        ]
        of_checks = [(metric.factory, (*metric.path, "factory")) for metric in self.metrics]
        of_checks += [(each.measure, (*each.path, "measure")) for each in self.agreements if ":" in each.measure]
        loaders = [(name, ("samples", key)) for key, each in self.samples.items() for name in each.callables]
        return of_cases + of_checks + loaders

    @property
    def data_names(self) -> dict[str, DocumentPath]:
        """The declared inputs that tests read, each with the place that names it first."""
        found: dict[str, DocumentPath] = dict(self.labels)
        for name, samples in self.samples.items():
            found[samples.files] = ("samples", name, "samples")
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
        if self.prompts is not None:
            found.setdefault(self.prompts.file, (*PROMPTS, "file"))
        return found


def metrics(checks: Checks) -> dict[DocumentPath, sections.Metric]:
    """The metrics of a manifest's `checks`, by their place."""
    return placed(checks.get("metric", []), "checks", "metric")


def agreements(checks: Checks) -> dict[DocumentPath, sections.Agreement]:
    """The agreements of a manifest's `checks`, by their place."""
    return placed(checks.get("agreement", []), "checks")


def placed(given: Any, section: str, key: str = "agreement") -> dict[DocumentPath, Any]:
    """One entry or a list of them, by their place."""
    if isinstance(given, list):
        return {(section, key, index): each for index, each in enumerate(given)}
    return {(section, key): given}


def tests_of(manifest: Manifest, methods: Iterable[str]) -> TestPlan:
    """What a checked manifest says about its tests, with every default.

    Args:
        manifest: The data of the manifest.
        methods: The names of the methods in its plan.
    """
    tests: Any = manifest.get("tests", {})
    checks, known = manifest.get("checks", {}), manifest.get("samples", {})
    sampled = {name: method["samples"] for name, method in manifest.get("methods", {}).items() if "samples" in method}
    of_metrics = {metric["samples"] for metric in metrics(checks).values() if "samples" in metric}
    used = {*sampled.values(), *of_metrics}
    labels = {name: known[name].get("labels", FOLDER) for name in sorted(of_metrics)}
    return TestPlan(
        methods={name: _method(name, tests, checks) for name in sorted(methods)},
        seed=tests.get("seed", 0),
        cases={name: _calls(case, ("tests", "cases", name)) for name, case in tests.get("cases", {}).items()},
        metrics=tuple(Metric.from_json({**metric, "path": path}) for path, metric in metrics(checks).items()),
        text=TextTest.from_json(checks["text"]) if "text" in checks else None,
        prompts=PromptsTest.from_json(checks["prompts"]) if "prompts" in checks else None,
        agreements=tuple(Agreement.from_json({**each, "path": path}) for path, each in agreements(checks).items()),
        samples={name: PluginKeys("samples").kind.from_json(known[name]) for name in sorted(used)},
        sampled=sampled,
        labels={file: ("samples", name, "labels") for name, file in labels.items() if file != FOLDER},
    )


def _method(name: str, tests: sections.Tests, checks: Checks) -> MethodTests:
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


def _calls(case: sections.Case, path: DocumentPath) -> tuple[Call, ...]:
    places = {(*path, "calls", index): call for index, call in enumerate(case.get("calls", []))} or {path: case}
    return tuple(Call.from_json({**call, "path": place}) for place, call in places.items())
