"""The types of a manifest's data: `make reference` writes them from `etplugins.model_tests.parts`."""

from __future__ import annotations

from typing import TypedDict

from etbuild.manifest.sections import ExampleInput, Number, Options
from etplugins.comparison.sections import Tolerance


class Agreement(TypedDict, total=False):
    """Data of `etplugins.model_tests.parts.Agreement`."""

    measure: str
    method: str
    output: int
    kwargs: Options
    min_mean: Number
    min_worst: Number
    max_mean: Number
    max_worst: Number


class Metric(TypedDict, total=False):
    """Data of `etplugins.model_tests.parts.Metric`."""

    factory: str
    data: str
    samples: str
    kwargs: Options
    min: Number
    max: Number
    max_change: Number


class TextCheck(TypedDict, total=False):
    """Data of `etplugins.model_tests.parts.TextTest`."""

    file: str
    tokens: int
    max_perplexity: Number
    max_perplexity_change: Number
    max_divergence: Number
    min_same_choices: Number
    min_equal_tokens: int


class PromptsCheck(TypedDict, total=False):
    """Data of `etplugins.model_tests.parts.PromptsTest`."""

    file: str
    template: str
    tokens: int
    must_contain: list[str]
    min_same_choice: Number


class TestsOfMethod(TypedDict, total=False):
    """Data of `etplugins.model_tests.parts.TestsOfMethod`."""

    tolerance: Tolerance
    random: int
    ranges: list[list[Number] | None]


class Call(TypedDict, total=False):
    """Data of `etplugins.model_tests.parts.Call`."""

    method: str
    inputs: list[ExampleInput]
    kwargs: dict[str, ExampleInput]


class Case(TypedDict, total=False):
    """Data of `etplugins.model_tests.parts.Case`."""

    method: str
    inputs: list[ExampleInput]
    kwargs: dict[str, ExampleInput]
    calls: list[Call]


class Tests(TypedDict, total=False):
    """Data of `etplugins.model_tests.parts.Tests`."""

    tolerance: Tolerance
    random: int
    seed: int
    methods: dict[str, TestsOfMethod]
    cases: dict[str, Case]


class PartOf(TypedDict):
    """Data of `etplugins.model_tests.parts.PartOf`."""

    at_most: Number
    of: str


class Least(TypedDict):
    """Data of `etplugins.model_tests.parts.Least`."""

    at_least: Number


class Qualify(TypedDict, total=False):
    """Data of `etplugins.model_tests.parts.Qualify`."""

    size: PartOf
    memory: PartOf
    sqnr: Least
    agreement: Agreement | list[Agreement]
