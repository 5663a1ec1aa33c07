"""The types of a manifest that fits its schema, one for each section of `model.schema.json`.

A test compares them with the schema. A key that the schema requires is there, and any other one may be missing.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

Options = dict[str, Any]
"""Values that users choose: keyword arguments of a callable, options of a backend, a Hugging Face configuration."""
Number = int | float
Tolerance = dict[str, Number]
Ranges = list[list[Number] | None]
Shapes = Any
"""Dynamic shapes, in the form of their input: None, a `Dim`, or a list or a mapping of dynamic shapes."""


class Cache(TypedDict, total=False):
    """`model.huggingface.cache`."""

    max_length: int
    max_seq_length: int
    kind: str


class Dense(TypedDict, total=False):
    """An entry of `model.huggingface.dense`."""

    in_features: int
    out_features: int
    bias: bool
    activation: str
    residual: bool


HuggingFace = TypedDict(
    "HuggingFace",
    {
        "task": str,
        "class": str,
        "config": str | Options,
        "generation_config": str | Options,
        "attention": str,
        "logits": str,
        "max_source_length": int,
        "pooling": str,
        "dense": list[Dense],
        "normalize": bool,
        "cache": Cache,
    },
    total=False,
)


class Checkpoint(TypedDict, total=False):
    """An entry of `model.weights` with rules."""

    file: str
    key: str
    rename: dict[str, str]
    ignore: list[str]
    optional: list[str]


class Adapter(TypedDict):
    """An entry of `model.adapters`."""

    config: str
    weights: str


class Model(TypedDict, total=False):
    """`model`."""

    factory: str
    huggingface: HuggingFace
    kwargs: Options
    seed: int
    weights: str | Checkpoint | list[str | Checkpoint]
    dtype: str
    adapters: dict[str, str | Adapter]
    modules: list[str]


class Recipe(TypedDict, total=False):
    """`recipe` with arguments."""

    name: str
    kwargs: Options


class ExampleInput(TypedDict, total=False):
    """An input of a method. Only tasks write `of_model` and `length`."""

    shape: list[int]
    dtype: str
    fill: str | Number
    factory: str
    kwargs: Options
    file: str
    key: str
    loader: str
    value: object
    list: list[ExampleInput]
    tuple: list[ExampleInput]
    dict: dict[str, ExampleInput]
    of_model: str
    length: int


class Dim(TypedDict, total=False):
    """A dynamic dimension."""

    dim: str
    min: int
    max: int
    multiple_of: int


class BackendEntry(TypedDict, total=False):
    """A partitioner or a quantizer with options."""

    backend: str
    options: Options


Partitioners = list[str | BackendEntry]


class Torchao(TypedDict, total=False):
    """An entry of `quantize.torchao`."""

    config: str
    group_size: int | None
    scales: str
    fitting: bool
    kwargs: Options
    modules: list[str]
    layers: list[str]


class Calibration(TypedDict, total=False):
    """`quantize.pt2e.calibration`."""

    file: str
    keys: list[str]
    factory: str
    kwargs: Options


class Pt2e(TypedDict, total=False):
    """`quantize.pt2e`."""

    quantizers: Partitioners
    calibration: Literal["example_inputs"] | Calibration
    qat: str
    passes: dict[str, list[str]]


class Quantize(TypedDict, total=False):
    """`quantize` of a method, or of `defaults`."""

    torchao: list[Torchao]
    pt2e: Pt2e


class Method(TypedDict, total=False):
    """An entry of `methods`."""

    entry: str
    adapter: str
    example_inputs: list[ExampleInput]
    example_kwargs: dict[str, ExampleInput]
    dynamic_shapes: list[Shapes]
    dynamic_kwargs_shapes: dict[str, Shapes]
    program: str
    strict: bool
    quantize: Quantize | None
    partitioners: Partitioners
    memory_planning: dict[str, str | bool | int]


class Defaults(TypedDict, total=False):
    """`defaults`."""

    partitioners: Partitioners | dict[str, Partitioners]
    strict: bool
    quantize: Quantize | None


class NamedData(TypedDict, total=False):
    """An entry of `named_data`."""

    parameters: list[str]
    shard_size: int


class Metadata(TypedDict, total=False):
    """`metadata`."""

    version: str
    license: str
    weights_licenses: dict[str, str]
    authors: list[str]
    description: str
    labels: dict[str, str]


class Executorch(TypedDict, total=False):
    """`executorch`."""

    memory_planning: dict[str, str | bool | int]
    sym_shape_eval_pass: str
    to_out_var_pass: dict[str, bool]
    propagate_device_config: dict[str, bool | dict[str, bool]]
    dynamic_memory_planning_mode: str
    emit_stacktrace: bool
    extract_delegate_segments: bool
    segment_alignment: int
    constant_tensor_alignment: int
    delegate_alignment: int
    remove_view_copy: bool
    external_mutable_weights: bool
    emit_mutable_buffer_names: bool
    do_quant_fusion_and_const_prop: bool
    run_reinplace_pass: bool
    reinplace_extra_ops: list[str]
    enable_non_cpu_memory_planning: bool


class CompareMethod(TypedDict, total=False):
    """An entry of `checks.compare.methods`."""

    tolerance: Tolerance
    ranges: Ranges
    leave_out: str


class Compare(TypedDict, total=False):
    """`checks.compare`."""

    tolerance: Tolerance
    leave_out: str
    work: int
    methods: dict[str, CompareMethod]


class Metric(TypedDict, total=False):
    """An entry of `checks.metric`."""

    factory: str
    data: str
    kwargs: Options
    min: Number
    max: Number
    max_change: Number


class TextCheck(TypedDict, total=False):
    """`checks.text`."""

    file: str
    tokens: int
    max_perplexity: Number
    max_perplexity_change: Number
    max_divergence: Number
    min_same_choices: Number
    min_equal_tokens: int


class Checks(TypedDict, total=False):
    """`checks`."""

    max_program_bytes: int
    max_named_data_bytes: int | dict[str, int]
    max_duplicate_bytes: int
    max_memory_bytes: int | dict[str, int]
    min_delegated: Number | dict[str, Number]
    finite: bool
    deterministic: bool
    runtime: bool
    compare: Compare
    max_error: Number | dict[str, Number]
    min_sqnr: Number | dict[str, Number]
    metric: Metric | list[Metric]
    text: TextCheck


class TestsOfMethod(TypedDict, total=False):
    """An entry of `tests.methods`."""

    tolerance: Tolerance
    random: int
    ranges: Ranges


class Call(TypedDict, total=False):
    """An entry of `tests.cases.NAME.calls`."""

    method: str
    inputs: list[ExampleInput]
    kwargs: dict[str, ExampleInput]


class Case(Call, total=False):
    """An entry of `tests.cases`: one call, or several."""

    calls: list[Call]


class Tests(TypedDict, total=False):
    """`tests`."""

    tolerance: Tolerance
    random: int
    seed: int
    methods: dict[str, TestsOfMethod]
    cases: dict[str, Case]


class Parameter(TypedDict, total=False):
    """An entry of `parameters`."""

    type: str
    default: object
    min: Number
    max: Number
    values: list[object]


class Manifest(TypedDict, total=False):
    """A whole manifest."""

    schema: str
    name: str
    model: Model
    recipe: str | Recipe
    parameters: dict[str, Parameter]
    variants: dict[str, Options]
    methods: dict[str, Method]
    defaults: Defaults
    constant_methods: dict[str, object]
    named_data: dict[str, NamedData]
    custom_ops: dict[str, list[str]]
    runner: str
    tokenizer: str | list[str]
    metadata: Metadata
    share_mutable_buffers: bool
    passes: dict[str, list[str]]
    edge_compile: dict[str, bool | list[str]]
    executorch: Executorch
    report: dict[str, bool]
    checks: Checks
    tests: Tests
