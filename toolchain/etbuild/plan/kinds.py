"""The kinds of single values that manifests have: their Python types, and what the schema says of them.

Attributes:
    identifier: A Python identifier. For example `prefill`.
    fileStem: A name that can be a part of a file name: letters, digits, `_` and `-`. For example `tiny_lm`.
    programName: Name of a program: NAME, or NAME.VARIANT; also NAME.CHECKPOINT or NAME.VARIANT.CHECKPOINT.
    inputName: Name of a declared input: a path relative to the manifest's directory, or to the repository's root, with
        `/` and without `..`. For example `weights.safetensors`.
    moduleName: A dotted Python module name. For example `layers.rotary`.
    callable: `module:callable`, a callable in the declared sources. For example `"model:create"`.
    callables: Callables in the declared sources, in the order in which they run. For example `["passes:edge_passes"]`.
    operators: PyTorch operators, as `namespace::name` or `namespace::name.overload`. For example
        `["aten::add.Tensor"]`.
    alignment: A number of bytes, a power of two, up to 2 MiB. Files may grow by this much for each aligned part. For
        example `64`.
    license: An SPDX expression. For example `Apache-2.0`.
    metadataText: A text on one line, without control characters. For example `"1.2.0"`.
    bytes: A number of bytes. For example `5000000`.
    bytesOrByName: A number of bytes, or one by name. For example `5000000`.
    fraction: A number from 0 to 1. For example `0.9`.
    numberByMethod: A number, or one by method. For example `0.01`.
    booleanByMethod: True or false: for every method, or by method. For example `true`, `{decode: true}`.
    strict: torch.export's `strict`: trace with TorchDynamo (true) or by running the Python code (false). For example
        `false`.
    leaveOut: Leaves methods out of the comparison. The text is the reason. For example `"its sampling draws random
        numbers"`.
    ranges: The smallest and the largest random number of each input, in the order in which the program takes them;
        `null` for an input that keeps the default. By default, floating-point inputs are drawn from the normal
        distribution, and integers from those of the example input. For example `[[0, 255], null]`.
    random: The number of cases with random inputs, and random sizes of dynamic dimensions. If there are any, the
        smallest and the largest sizes are cases too. 0: no random inputs. For example `5`.
    partitioner: A backend, by name or with options. Each backend has its own schema for the options. For example
        `xnnpack`, `{backend: custom, options: {factory: "partitioner:create"}}`.
    partitioners: Backends in the order in which they take operators. ExecuTorch's portable operators run the rest. For
        example `[xnnpack]`, `[{backend: xnnpack, options: {per_op_mode: true}}]`.
    quantize: How a method is quantized. `null`: not at all, even if `defaults` has `quantize`. With `pt2e`, or a
        configuration from code, the export reads the weights, so that the build rule has to list them under `data`. For
        example `{torchao: [{config: "8da4w", group_size: 32}]}`.
    shapes: `null` for a fixed size, or a named range. For example `{dim: seq, min: 2, max: 128}`.
    testInputs: The positional inputs, as in `example_inputs`. For example `[{file: cat.npy}]`.
    testKwargs: The keyword inputs, as in `example_kwargs`. For example `{mask: {shape: [1, 16], dtype: bool}}`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from etbuild.files.value_limits import INT64
from etbuild.plan.part import Says

_NAME = "[A-Za-z_][A-Za-z0-9_]*"
_STEM = "[A-Za-z0-9_][A-Za-z0-9_-]{0,99}"
MODULE = rf"{_NAME}(\.{_NAME})*"

Options = dict[str, Any]
"""Values that users choose: keyword arguments of a callable, options of a backend, a Hugging Face configuration."""
Names = tuple[str, ...]
Count = Annotated[int, Says(minimum=0, maximum=INT64[1])]
Size = Annotated[int, Says(minimum=1, maximum=INT64[1])]
LayerSize = Annotated[int, Says(minimum=1, maximum=2**20)]
Positive = Annotated[float, Says(minimum=0)]
Text = Annotated[str, Says(minLength=1)]
SomeTexts = Annotated[tuple[Text, ...], Says(minItems=1)]
Patterns = Annotated[tuple[Text, ...], Says(minItems=1, uniqueItems=True)]
NamePatterns = Annotated[tuple[Annotated[Text, Says(text="A pattern.")], ...], Says(minItems=1, uniqueItems=True)]
Plain = Annotated[object, Says(type=["integer", "number", "boolean", "string"])]
Dtype = Literal["float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]

Identifier = Annotated[str, Says("identifier", maxLength=100, pattern=f"^{_NAME}$")]
FileStem = Annotated[str, Says("fileStem", pattern=f"^{_STEM}$")]
VariantName = Annotated[FileStem, Says(maxLength=40)]
ProgramName = Annotated[str, Says("programName", pattern=rf"^{_STEM}(\.{_STEM}){{0,2}}$")]
InputName = Annotated[str, Says("inputName", minLength=1)]
InputNames = Annotated[tuple[InputName, ...], Says(uniqueItems=True)]
ModuleName = Annotated[str, Says("moduleName", maxLength=200, pattern=f"^{MODULE}$")]
ModuleNames = Annotated[tuple[ModuleName, ...], Says(uniqueItems=True)]
CallableName = Annotated[str, Says("callable", maxLength=200, pattern=f"^{MODULE}:{MODULE}$")]
Callables = Annotated[tuple[CallableName, ...], Says("callables", default=[])]
PlanningAlgorithm = Annotated[str, Says(pattern=f"^(greedy|naive|{MODULE}:{MODULE})$")]
Entry = Annotated[str, Says(pattern=rf"^{_NAME}(\.[A-Za-z0-9_]+)*$")]
Operator = Annotated[
    str,
    Says(
        text="A PyTorch operator, as `namespace::name` or `namespace::name.overload`. "
        'For example `"aten::add.Tensor"`.',
        pattern=rf"^{_NAME}::{_NAME}(\.{_NAME})?$",
    ),
]
Operators = Annotated[tuple[Operator, ...], Says("operators", default=[])]
Alignment = Annotated[int, Says("alignment", minimum=1, maximum=2**21)]
_LICENSE = "[A-Za-z0-9.+():-]+"
License = Annotated[str, Says("license", pattern=f"^{_LICENSE}( {_LICENSE})*$", maxLength=1000)]
_CONTROL = r"\u0000-\u001f\u007f-\u009f\u2028\u2029"
MetadataText = Annotated[str, Says("metadataText", pattern=f"^[^{_CONTROL}]+$", maxLength=1000)]
_LABEL = "The key of an annotation: letters, digits and `._/-`."
Label = Annotated[str, Says(text=_LABEL, pattern="^[A-Za-z0-9][A-Za-z0-9._/-]*$", maxLength=255)]
Bytes = Annotated[int, Says("bytes", minimum=0, maximum=INT64[1])]
BytesOrByName = Annotated[Bytes | Annotated[dict[str, Bytes], Says(minProperties=1)], Says("bytesOrByName")]
Fraction = Annotated[float, Says("fraction", minimum=0, maximum=1)]
FractionByMethod = Fraction | Annotated[dict[str, Fraction], Says(minProperties=1)]
NumberByMethod = Annotated[Positive | Annotated[dict[str, Positive], Says(minProperties=1)], Says("numberByMethod")]
BooleanByMethod = Annotated[
    bool | Annotated[dict[str, bool], Says(minProperties=1)], Says("booleanByMethod", default=False)
]
Strict = Annotated[bool, Says("strict", default=False)]
LeaveOut = Annotated[Text, Says("leaveOut")]
Range = Annotated[
    tuple[Annotated[float, Says(text="A number. For example `0`.")], ...],
    Says(
        text="The smallest and the largest number. For example `[0, 255]`.",
        type=["array", "null"],
        minItems=2,
        maxItems=2,
    ),
]
Ranges = Annotated[tuple[Range, ...], Says("ranges")]
RandomCases = Annotated[int, Says("random", minimum=0, maximum=10000, default=1)]
