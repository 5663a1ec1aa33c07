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


class Checkpoint(TypedDict, total=False):
    """Data of `plan.parts.WeightsFile`."""

    file: str
    key: str
    rename: dict[str, str]
    ignore: list[str]
    optional: list[str]


class Model(TypedDict, total=False):
    """Data of `plan.parts.Model`."""

    factory: str
    huggingface: Any
    kwargs: Options
    seed: int
    modules: list[str]
    dtype: str | Any
    weights: str | Checkpoint | list[str | Checkpoint]
    adapters: dict[str, str | Any]


class Parameter(TypedDict, total=False):
    """Data of `tools.reference.manifest_forms.Parameter`."""

    type: str
    default: object
    min: Number
    max: Number
    values: list[object]


class BackendEntry(TypedDict, total=False):
    """Data of `plan.parts.BackendEntry`."""

    backend: str
    options: Options


class ExampleInput(TypedDict, total=False):
    """Data of `tools.reference.manifest_forms.ExampleInput`."""

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
    """Data of `tools.reference.manifest_forms.WrittenDim`."""

    dim: str
    min: int
    max: int
    multiple_of: int


class MemoryPlanning(TypedDict, total=False):
    """Data of `plan.parts.MemoryPlanning`."""

    memory_planning_algo: str
    allow_lifetime_and_storage_overlap: bool
    alloc_graph_input: bool
    alloc_graph_output: bool
    alloc_mutable_buffers: bool
    alignment: int


class Method(TypedDict, total=False):
    """Data of `plan.parts.Method`."""

    program: str
    entry: str
    strict: bool
    quantize: Any | None
    example_inputs: list[ExampleInput]
    example_kwargs: dict[str, ExampleInput]
    dynamic_shapes: list[Shapes]
    dynamic_kwargs_shapes: dict[str, Shapes]
    adapter: str
    samples: str
    partitioners: list[str | BackendEntry]
    memory_planning: MemoryPlanning
    io: Any


class Defaults(TypedDict, total=False):
    """Data of `tools.reference.manifest_forms.Defaults`."""

    partitioners: list[str | BackendEntry] | dict[str, list[str | BackendEntry]]
    strict: bool
    quantize: Any | None


class NamedData(TypedDict, total=False):
    """Data of `plan.parts.NamedData`."""

    parameters: list[str]
    shard_size: int


class CustomOps(TypedDict, total=False):
    """Data of `plan.parts.CustomOps`."""

    libraries: list[str]
    modules: list[str]


class Metadata(TypedDict, total=False):
    """Data of `tools.reference.manifest_forms.Metadata`."""

    version: str
    license: str
    weights_licenses: dict[str, str]
    authors: list[str]
    description: str
    labels: dict[str, str]
    inputs: list[Any] | dict[str, list[Any]]
    outputs: list[Any] | dict[str, list[Any]]


class Passes(TypedDict, total=False):
    """Data of `plan.parts.Passes`."""

    edge: list[str]
    edge_manager: list[str]
    executorch: list[str]
    aten: list[str]


class EdgeCompile(TypedDict, total=False):
    """Data of `plan.parts.EdgeCompile`."""

    check_ir_validity: bool
    skip_dim_order: bool
    core_aten_ops_exception_list: list[str]
    preserve_ops: list[str]


class ToOutVarPass(TypedDict, total=False):
    """Data of `plan.parts.ToOutVarPass`."""

    ignore_to_out_var_failure: bool


class PropagateDevice(TypedDict, total=False):
    """Data of `plan.parts.PropagateDevice`."""

    skip_h2d_for_method_inputs: bool | dict[str, bool]
    skip_d2h_for_method_outputs: bool | dict[str, bool]


class Executorch(TypedDict, total=False):
    """Data of `tools.reference.manifest_forms.ExecutorchOptions`."""

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


class Report(TypedDict, total=False):
    """Data of `plan.parts.ReportOptions`."""

    operators: bool
    blobs: bool


class Checks(TypedDict, total=False):
    """Data of `tools.reference.manifest_forms.Checks`."""

    max_program_bytes: int
    max_named_data_bytes: int | dict[str, int]
    max_duplicate_bytes: int
    max_memory_bytes: int | dict[str, int]
    min_delegated: Number | dict[str, Number]
    finite: bool
    deterministic: bool
    runtime: bool
    compare: Any
    max_error: Number | dict[str, Number]
    min_sqnr: Number | dict[str, Number]
    agreement: Any | list[Any]
    metric: Any | list[Any]
    text: Any
    prompts: Any
    vela: Any


Manifest = TypedDict(
    "Manifest",
    {
        "schema": str,
        "name": str,
        "model": Model,
        "recipe": str | Any,
        "parameters": dict[str, Parameter],
        "variants": dict[str, Options],
        "methods": dict[str, Method],
        "samples": dict[str, Any],
        "defaults": Defaults,
        "constant_methods": dict[str, object],
        "named_data": dict[str, NamedData],
        "custom_ops": CustomOps,
        "runner": str,
        "for": str | Any | list[str | Any],
        "tokenizer": str | list[str],
        "metadata": Metadata,
        "share_mutable_buffers": bool,
        "passes": Passes,
        "edge_compile": EdgeCompile,
        "executorch": Executorch,
        "report": Report,
        "checks": Checks,
        "tests": Any,
        "qualify": Any,
    },
    total=False,
)


Partitioners = list[str | BackendEntry]
