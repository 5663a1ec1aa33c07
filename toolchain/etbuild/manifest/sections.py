"""The types of a manifest's data, one for each section: `make reference` writes them from `etbuild.plan`.

A key that the schema requires is there, and any other one may be missing.
"""

from __future__ import annotations

from typing import Any, TypedDict

Options = dict[str, Any]
"""Values that users choose: keyword arguments of a callable, options of a backend, a Hugging Face configuration."""
Number = int | float
Ranges = list[list[Number] | None]
Shapes = Any
"""Dynamic shapes, in the form of their input: None, a `Dim`, or a list or a mapping of dynamic shapes."""


class ExampleInput(TypedDict, total=False):
    """`methods.NAME.example_inputs[N]`."""

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


class Call(TypedDict, total=False):
    """`tests.cases.NAME.calls[N]`."""

    method: str
    inputs: list[ExampleInput]
    kwargs: dict[str, ExampleInput]


class Case(TypedDict, total=False):
    """`tests.cases.NAME`."""

    method: str
    inputs: list[ExampleInput]
    kwargs: dict[str, ExampleInput]
    calls: list[Call]


class Tolerance(TypedDict, total=False):
    """`checks.compare.tolerance`."""

    atol: Number
    rtol: Number
    of_largest: Number


class TestsOfMethod(TypedDict, total=False):
    """`tests.methods.NAME`."""

    tolerance: Tolerance
    random: int
    ranges: list[list[Number] | None]


class Tests(TypedDict, total=False):
    """`tests`."""

    tolerance: Tolerance
    random: int
    seed: int
    methods: dict[str, TestsOfMethod]
    cases: dict[str, Case]


class TextCheck(TypedDict, total=False):
    """`checks.text`."""

    file: str
    tokens: int
    max_perplexity: Number
    max_perplexity_change: Number
    max_divergence: Number
    min_same_choices: Number
    min_equal_tokens: int


class Metric(TypedDict, total=False):
    """`checks.metric[N]`."""

    factory: str
    data: str
    kwargs: Options
    min: Number
    max: Number
    max_change: Number


class CompareMethod(TypedDict, total=False):
    """`checks.compare.methods.NAME`."""

    tolerance: Tolerance
    ranges: list[list[Number] | None]
    leave_out: str


class Compare(TypedDict, total=False):
    """`checks.compare`."""

    tolerance: Tolerance
    leave_out: str
    work: int
    methods: dict[str, CompareMethod]


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


class Report(TypedDict, total=False):
    """`report`."""

    operators: bool
    blobs: bool


class MemoryPlanning(TypedDict, total=False):
    """`methods.NAME.memory_planning`."""

    memory_planning_algo: str
    allow_lifetime_and_storage_overlap: bool
    alloc_graph_input: bool
    alloc_graph_output: bool
    alloc_mutable_buffers: bool
    alignment: int


class PropagateDevice(TypedDict, total=False):
    """`executorch.propagate_device_config`."""

    skip_h2d_for_method_inputs: bool | dict[str, bool]
    skip_d2h_for_method_outputs: bool | dict[str, bool]


class ToOutVarPass(TypedDict, total=False):
    """`executorch.to_out_var_pass`."""

    ignore_to_out_var_failure: bool


class Executorch(TypedDict, total=False):
    """`executorch`."""

    to_out_var_pass: ToOutVarPass
    propagate_device_config: PropagateDevice
    extract_delegate_segments: bool
    segment_alignment: int
    constant_tensor_alignment: int
    delegate_alignment: int
    sym_shape_eval_pass: str
    remove_view_copy: bool
    external_mutable_weights: bool
    emit_mutable_buffer_names: bool
    do_quant_fusion_and_const_prop: bool
    run_reinplace_pass: bool
    reinplace_extra_ops: list[str]
    enable_non_cpu_memory_planning: bool
    memory_planning: MemoryPlanning
    dynamic_memory_planning_mode: str
    emit_stacktrace: bool


class EdgeCompile(TypedDict, total=False):
    """`edge_compile`."""

    check_ir_validity: bool
    skip_dim_order: bool
    core_aten_ops_exception_list: list[str]
    preserve_ops: list[str]


class Passes(TypedDict, total=False):
    """`passes`."""

    edge: list[str]
    edge_manager: list[str]
    executorch: list[str]
    aten: list[str]


class Metadata(TypedDict, total=False):
    """`metadata`."""

    version: str
    license: str
    weights_licenses: dict[str, str]
    authors: list[str]
    description: str
    labels: dict[str, str]


class CustomOps(TypedDict, total=False):
    """`custom_ops`."""

    libraries: list[str]
    modules: list[str]


class NamedData(TypedDict, total=False):
    """`named_data.NAME`."""

    parameters: list[str]
    shard_size: int


class Constant(TypedDict, total=False):
    """`constant_methods.NAME`."""

    factory: str
    kwargs: Options


class QuantizePasses(TypedDict, total=False):
    """`methods.NAME.quantize.pt2e.passes`."""

    pre_prepare: list[str]
    post_prepare: list[str]
    pre_convert: list[str]
    post_convert: list[str]


class Calibration(TypedDict, total=False):
    """`methods.NAME.quantize.pt2e.calibration`."""

    file: str
    keys: list[str]
    factory: str
    kwargs: Options


class BackendEntry(TypedDict, total=False):
    """`methods.NAME.quantize.pt2e.quantizers[N]`."""

    backend: str
    options: Options


class Pt2e(TypedDict, total=False):
    """`methods.NAME.quantize.pt2e`."""

    quantizers: list[str | BackendEntry]
    calibration: str | Calibration
    qat: str
    passes: QuantizePasses


class Torchao(TypedDict, total=False):
    """`methods.NAME.quantize.torchao[N]`."""

    config: str
    modules: list[str]
    layers: list[str]
    group_size: int | None
    kwargs: Options
    scales: str
    fitting: bool


class Quantize(TypedDict, total=False):
    """`methods.NAME.quantize`."""

    torchao: list[Torchao]
    pt2e: Pt2e


class Defaults(TypedDict, total=False):
    """`defaults`."""

    partitioners: list[str | BackendEntry] | dict[str, list[str | BackendEntry]]
    strict: bool
    quantize: Quantize | None


class Dim(TypedDict, total=False):
    """`methods.NAME.dynamic_shapes[N]`."""

    dim: str
    min: int
    max: int
    multiple_of: int


class Method(TypedDict, total=False):
    """`methods.NAME`."""

    program: str
    entry: str
    strict: bool
    quantize: Quantize | None
    example_inputs: list[ExampleInput]
    example_kwargs: dict[str, ExampleInput]
    dynamic_shapes: list[Shapes]
    dynamic_kwargs_shapes: dict[str, Shapes]
    adapter: str
    partitioners: list[str | BackendEntry]
    memory_planning: MemoryPlanning


class Parameter(TypedDict, total=False):
    """`parameters.NAME`."""

    type: str
    default: object
    min: Number
    max: Number
    values: list[object]


class Recipe(TypedDict, total=False):
    """`recipe`."""

    name: str
    kwargs: Options


class Adapter(TypedDict):
    """`model.adapters.NAME`."""

    config: str
    weights: str


class Checkpoint(TypedDict, total=False):
    """`model.weights[N]`."""

    file: str
    key: str
    rename: dict[str, str]
    ignore: list[str]
    optional: list[str]


class Dense(TypedDict, total=False):
    """`model.huggingface.dense[N]`."""

    in_features: int
    out_features: int
    bias: bool
    activation: str
    residual: bool


class Cache(TypedDict, total=False):
    """`model.huggingface.cache`."""

    max_length: int
    kind: str
    max_seq_length: int


class ConfigFile(TypedDict, total=False):
    """`model.huggingface.config`."""

    file: str
    set: Options


HuggingFace = TypedDict(
    "HuggingFace",
    {
        "class": str,
        "config": Options | str,
        "cache": Cache,
        "max_source_length": int,
        "pooling": str,
        "dense": list[Dense],
        "normalize": bool,
        "task": str,
        "attention": str,
        "logits": str,
        "generation_config": Options | str,
    },
    total=False,
)


class Model(TypedDict, total=False):
    """`model`."""

    factory: str
    huggingface: HuggingFace
    kwargs: Options
    seed: int
    modules: list[str]
    dtype: str
    weights: str | Checkpoint | list[str | Checkpoint]
    adapters: dict[str, str | Adapter]


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
    custom_ops: CustomOps
    runner: str
    tokenizer: str | list[str]
    metadata: Metadata
    share_mutable_buffers: bool
    passes: Passes
    edge_compile: EdgeCompile
    executorch: Executorch
    report: Report
    checks: Checks
    tests: Tests


Partitioners = list[str | BackendEntry]
