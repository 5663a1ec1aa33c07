"""The parts that only manifests have, or that differ in plans: `make reference` writes their schema from them.

Everything else of a manifest is described where plans have it: in `plan.parts`, and in `parts` of plug-ins.
"""

from __future__ import annotations

from typing import Annotated, Literal

from etbuild.plan import kinds, parts
from etbuild.plan.part import DRIVER_ONLY, Part, PluginKeys, Says

Inputs = tuple["ExampleInput", ...]


class ExampleInput(Part, kw_only=True, definition="exampleInput", needs=()):
    """One input: a tensor by shape, dtype and fill; a tensor from a factory or a declared file; a plain value; or a
    list, tuple or mapping of inputs. For example `{shape: [1, 16], dtype: int64, fill: arange}`.

    Attributes:
        shape: Sizes of the dimensions; `[]` is a scalar tensor. For example `[1, 3, 64, 64]`.
        dtype: Element type, by PyTorch's name. For example `int64`.
        fill: Value of the elements: `random` (the same numbers between 0 and 1 in each build; 0 for integers and
            booleans), `zeros`, `ones`, `arange` (0, 1, 2, ... in row-major order), or one number. For example `arange`,
            `1`.
        factory: A callable in the declared sources that returns the input: a tensor, a plain value, or lists, tuples
            and mappings of these. For example `"inputs:spectrogram"`.
        kwargs: Keyword arguments of `factory`. For example `{frames: 50}`.
        file: Name of a declared input that holds the tensor: a .safetensors or .npy file, or a file of torch.save; with
            `loader`, any file. For example `inputs.safetensors`.
        key: Name of the tensor in `file`. For example `tokens`.
        loader: A callable in the declared sources that reads `file`, for example an image. It takes the path, a
            `pathlib.Path`, and returns the input. For example `"images:load"`.
        value: A number, a boolean, a string or null that the method is exported with. The program accepts only this
            value. A program cannot represent a string: it takes null in its place. For example `3`, `0.5`, `true`,
            `mean`, `null`.
        list: A list of inputs. The program takes its elements as separate inputs. For example `[{shape: [1, 8]},
            {shape: [1, 8]}]`.
        tuple: A tuple of inputs. The program takes its elements as separate inputs. For example `[{shape: [1, 8]},
            {value: 2}]`.
        dict: A mapping of inputs. The program takes its values as separate inputs, sorted by key. For example `{tokens:
            {shape: [1, 16], dtype: int64}, mask: {shape: [1, 16]}}`.
    """

    shape: tuple[kinds.Size, ...]
    dtype: kinds.Dtype = "float32"
    fill: Literal["random", "zeros", "ones", "arange"] | float = "random"
    factory: kinds.CallableName
    kwargs: kinds.Options
    file: kinds.InputName
    key: str
    loader: kinds.CallableName
    value: Annotated[object, Says(type=["integer", "number", "boolean", "string", "null"])]
    list: Annotated[Inputs, Says(minItems=1)]
    tuple: Annotated[Inputs, Says(minItems=1)]
    dict: Annotated[InputsByName, Says(minProperties=1)]
    of_model: Annotated[str, DRIVER_ONLY]
    length: Annotated[int, DRIVER_ONLY]


InputsByName = dict[str, ExampleInput]


class WrittenDim(Part, section="Dim", definition="dim"):
    """A dynamic dimension. Within a method, the same name means the same size. The range must be written at least once.
    For example `{dim: seq, min: 2, max: 128}`.

    Attributes:
        dim: Name of the dimension; or its size as a multiple of another dimension, plus or minus a number. For example
            `seq`, `"2*seq + 1"`.
        min: Minimum size. Default: 1, or `multiple_of`; for a derived size the one that follows from 1. For example
            `2`.
        max: Maximum size. The program plans memory for this size. For example `128`.
        multiple_of: A number that divides each size, if the model needs that. The runtime does not check it. For
            example `8`.
    """

    dim: Annotated[
        str,
        Says(maxLength=100, pattern=r"^([1-9][0-9]{0,8} ?\* ?)?[A-Za-z_][A-Za-z0-9_]*( ?[+-] ?[0-9]{1,9})?$"),
    ]
    min: Annotated[int, Says(minimum=0, maximum=2**63 - 1)] | None = None
    max: kinds.Size | None = None
    multiple_of: Annotated[int, Says(minimum=2, maximum=2**63 - 1)] | None = None


_NESTED = {"$ref": "#/$defs/shapes"}
_CAN_NEST = ["null", "array", "object"]
_IS_DIM = {"type": "object", "not": {"additionalProperties": {"type": _CAN_NEST}}}
_KEYWORDS = {"if": _IS_DIM, "then": WrittenDim, "else": {"additionalProperties": _NESTED}}
WrittenShapes = Annotated[object, Says("shapes", type=_CAN_NEST, items=_NESTED, **_KEYWORDS)]


class Constant(Part):
    """The constant: a number, a boolean, a string, or a list of numbers and booleans; or a callable that returns it.
    For example `128`.

    Attributes:
        factory: A callable in the declared sources that returns the constant: a number, a boolean, a string, a list of
            numbers and booleans, or a tensor. For example `"tokenizer:vocabulary_size"`.
        kwargs: Keyword arguments of `factory`. For example `{extra: 1}`.
        schema: Instead of `factory`: the constant is a text about the inputs and outputs of all methods, in the form
            that the library of an application reads. `react-native-executorch` reads it from the constant method
            `get_model_schema`. For example `react-native-executorch`.
    """

    factory: kinds.CallableName | None = None
    kwargs: Annotated[kinds.Options, Says(default=...)] = {}
    schema: kinds.FileStem | None = None


ConstantValue = Annotated[
    object,
    Says(
        written=Constant,
        type=["integer", "number", "boolean", "string", "array", "object"],
        items={"type": ["number", "boolean"], "description": "A number or a boolean."},
        minItems=1,
    ),
]


class Defaults(Part):
    """Defaults for all methods.

    Attributes:
        partitioners: One list for all methods, or one list for each method by name. For example `[xnnpack]`, `{encode:
            [xnnpack], decode: []}`.
    """

    partitioners: parts.Partitioners | dict[str, parts.Partitioners] = ()
    strict: kinds.Strict | None = None
    quantize: parts.Quantization = None


class ExecutorchOptions(parts.Executorch, section="Executorch"):
    """Fields of ExecuTorch's `ExecutorchBackendConfig`, and the arguments of its memory planning.

    Attributes:
        memory_planning: Arguments of ExecuTorch's MemoryPlanningPass, for all methods.
        dynamic_memory_planning_mode: How memory is planned for dynamic sizes. ExecuTorch 1.5 supports only upper
            bounds. For example `upper_bound`.
        emit_stacktrace: Whether the program holds Python stack traces. Only `false` works, because an export has no
            stack traces. For example `false`.
    """

    memory_planning: parts.MemoryPlanning | None = None
    dynamic_memory_planning_mode: Literal["upper_bound", "symbolic"] = "upper_bound"
    emit_stacktrace: bool = False


_OF_METHOD = "What they mean in this method, in their order. For example `[{name: image}]`."
_OfMethod = Annotated[tuple[Annotated[Part, PluginKeys("metadata.inputs")], ...], Says(text=_OF_METHOD, minItems=1)]
Described = _OfMethod | Annotated[dict[kinds.Identifier, _OfMethod], Says(minProperties=1)]


class Metadata(Part, minProperties=1):
    """What people should know about a program.

    Attributes:
        version: The version of the program, as its users count it. The annotation `org.opencontainers.image.version`.
            For example `"1.2.0"`.
        license: The license of the program, as an SPDX expression. The annotation `org.opencontainers.image.licenses`.
            For example `Apache-2.0`, `"MIT AND LicenseRef-weights"`.
        weights_licenses: The license of each file of weights, as an SPDX expression, by the name of the file. For
            example `{net.safetensors: Apache-2.0}`.
        authors: The people or teams to ask. The annotation `org.opencontainers.image.authors`, with commas between
            them. For example `["Speech team <speech@example.com>"]`.
        description: What the program does, on one line. The annotation `org.opencontainers.image.description`. For
            example `"Finds the wake word in 16 kHz audio"`.
        labels: More annotations by key. The keys above have their own names and cannot be labels. For example
            `{com.example.product: watch}`.
        inputs: What the inputs of a method mean, in their order; by method if there are several. It is checked against
            the program, and is in the index and the report. For example `[{name: image, layout: nchw, colors: rgb}]`,
            `{encode: [{name: text}], decode: [{name: token}]}`.
        outputs: What the outputs of a method mean, as for `inputs`. For example `[{name: scores, labels: [cat, dog]}]`.
    """

    version: kinds.MetadataText | None = None
    license: kinds.License | None = None
    weights_licenses: Annotated[dict[kinds.InputName, kinds.License], Says(minProperties=1)] | None = None
    authors: Annotated[tuple[kinds.MetadataText, ...], Says(minItems=1, uniqueItems=True)] | None = None
    description: kinds.MetadataText | None = None
    labels: Annotated[dict[kinds.Label, kinds.MetadataText], Says(minProperties=1)] | None = None
    inputs: Described | None = None
    outputs: Described | None = None


class Checks(Part):
    """Limits for a program.

    Attributes:
        max_program_bytes: Maximum size of the .pte, in bytes. For example `5000000`.
        max_named_data_bytes: Maximum size of the named data, in bytes: for all tags together, or by tag. For example
            `20000000`, `{weights: 20000000}`.
        max_duplicate_bytes: Maximum size of duplicate weights in the .pte and the named data, in bytes; 0 allows no
            duplicates. A weight is stored twice if two backends read it, or a backend and portable operators, or two
            delegates whose backend keeps weights in its compiled form. `sharing` in the report lists the duplicates.
            For example `0`, `65536`.
        max_memory_bytes: Maximum total size of the buffers in a method's memory plan, in bytes: for every method, or by
            method. For example `1000000`, `{decode: 100000}`.
        min_delegated: Minimum fraction of a method's operators that backends take, from 0 to 1: for every method, or by
            method. For example `0.9`, `{decode: 0.5}`.
        finite: Whether weights must be finite: no parameter has NaN or infinity, and no buffer has NaN or +inf. (A
            buffer may have -inf, because masks do.) If false, the build prints a note instead. For example `true`.
        deterministic: Whether methods must give the same result in every call: none draws random numbers, such as those
            of a dropout. If false, the build prints a note instead. For example `true`.
        runtime: Whether the runtime in ExecuTorch's own package must be able to run the operators that no backend
            takes: each has a kernel. If false, the build prints a note instead, since an application may have kernels
            of its own. That runtime has no kernels for `custom_ops`. The default is true with a `runner` and without
            `custom_ops`, and otherwise false. For example `true`.
        compare: How the build compares what the program computes in ExecuTorch's runtime with the exported methods in
            PyTorch: with the example inputs, twice, and with inputs that the graph chooses, in the sizes that dynamic
            dimensions allow. A difference beyond the tolerance, and beyond what rounding explains, fails the build. A
            method that the runtime here cannot run is left out, with a note. For example `{methods: {decode: {ranges:
            [[0, 255]]}}}`.
        max_error: For `etbuild test`: the largest absolute difference between the outputs of the program and those of
            the model in eager PyTorch without quantization; for every method, or by method. For example `0.01`,
            `{decode: 0.05}`.
        min_sqnr: For `etbuild test`: the smallest ratio of signal to error of the outputs, in decibels, against the
            model in eager PyTorch without quantization; for every method, or by method. 20 dB is an error of a tenth,
            40 dB of a hundredth. For example `30`, `{decode: 25}`.
        agreement: For `etbuild test`: how near the program is to the model in eager PyTorch without quantization on the
            samples of a method, in the unit of its task: the mean and the worst. A list for several. For example
            `{measure: top1, min_mean: 0.95}`.
        metric: For `etbuild test`: how well the program does its task, such as its accuracy on a data set. A list for
            several. For example `{factory: "eval:top1", data: validation.safetensors, min: 0.71}`.
        text: For `etbuild test`: how near the program of a language model is to transformers, which computes a text in
            float32, without a cache and without quantization. For example `{file: held_out.txt, max_divergence: 0.05}`.
        prompts: For `etbuild test`: prompts that the program of a language model answers as in an application, what the
            answers have to contain, and for which part of the prompts eager PyTorch answers with the same tokens. For
            example `{file: prompts.jsonl, min_same_choice: 0.9}`.
        vela: The most that Vela may estimate for methods with `ethos-u`. For example `{cycles: 200000, sram_bytes:
            {decode: 120000}}`.
    """

    max_program_bytes: kinds.Bytes | None = None
    max_named_data_bytes: kinds.BytesOrByName | None = None
    max_duplicate_bytes: kinds.Bytes | None = None
    max_memory_bytes: kinds.BytesOrByName | None = None
    min_delegated: kinds.FractionByMethod | None = None
    finite: bool = False
    deterministic: bool = False
    runtime: bool | None = None
    compare: Annotated[Part, PluginKeys("checks.compare")] | None = None
    max_error: kinds.NumberByMethod | None = None
    min_sqnr: kinds.NumberByMethod | None = None
    agreement: (
        Annotated[tuple[Annotated[Part, PluginKeys("checks.agreement")], ...], Says(one=True, minItems=1)] | None
    ) = None
    metric: Annotated[tuple[Annotated[Part, PluginKeys("checks.metric")], ...], Says(one=True, minItems=1)] | None = (
        None
    )
    text: Annotated[Part, PluginKeys("checks.text")] | None = None
    prompts: Annotated[Part, PluginKeys("checks.prompts")] | None = None
    vela: Annotated[Part, PluginKeys("checks.vela")] | None = None


class Parameter(Part, definition="parameter"):
    """One parameter: its type, its default, and the values that it can have. For example `{type: int, default: 2, min:
    1, max: 48}`.

    Attributes:
        type: The type of the value: a whole number, a number, true or false, or a text. For example `int`.
        default: The value if nothing sets the parameter. For example `2`.
        min: The smallest value of an `int` or a `float`. For example `1`.
        max: The largest value of an `int` or a `float`. For example `48`.
        values: All values that the parameter can have. For example `[2, 4, 8]`, `[small, large]`.
    """

    type: Literal["int", "float", "bool", "string"]
    default: kinds.Plain
    min: float | None = None
    max: float | None = None
    values: (
        Annotated[
            tuple[Annotated[kinds.Plain, Says(text="A value of the parameter's type.")], ...],
            Says(minItems=1, uniqueItems=True),
        ]
        | None
    ) = None


_VARIANT = "What differs from the rest of the manifest. For example `{defaults: {partitioners: [coreml]}}`."


_KIND = "A kind of application, or a mapping with what one of your own has in addition. For example `android`."


class Manifest(Part):
    """Describes how a PyTorch model becomes one ExecuTorch program: the module, its methods, the inputs that each
    method is exported with, and the backends.

    Attributes:
        schema: The format of this file and its version. For example `executorch-model/v1`.
        name: Name of the program. It is part of the artifacts' names: NAME.pte, NAME.TAG.ptd, NAME.index.json,
            NAME.report.json. For example `tiny_lm`.
        model: The module. Required unless every method is a `program`. For example `{factory: "model:create"}`,
            `{huggingface: {class: BertModel}}`.
        recipe: The export recipe that the program starts from: the name of one of ExecuTorch's recipes, such as
            `ios-arm64-coreml-fp16`; or a `module:callable` in the declared sources that returns an ExportRecipe. It
            sets `partitioners`, `quantize` and `strict` if neither the method nor `defaults` sets them, and the fields
            that `edge_compile` and `executorch` do not set. Its passes run before those of `passes`. For example
            `xnnpack_fp32`, `{name: xnnpack_torchao_int8da_int4w_per_tensor, kwargs: {group_size: 64}}`.
        parameters: Values that the command line or the build rule can set. The value `{parameter: NAME}`, written in
            place of any single value, is replaced by the parameter's value. For example `{layers: {type: int, default:
            2}}`.
        variants: Other programs from the same manifest, by name. Each is called NAME.VARIANT, and is a mapping that is
            merged over the rest of the manifest: mappings merge by key, lists and single values are replaced, and
            `null` removes a key. A variant can have every key except `schema`, `name` and `variants`. For example
            `{ios: {defaults: {partitioners: [coreml, xnnpack]}}}`.
        methods: The methods of the program, by name. They share weights. For example `{forward: {example_inputs:
            [{shape: [1, 8]}]}}`.
        samples: Lists of files with inputs, by name. A method names one of them: the build compares it on these, its
            quantization can be calibrated on them, and `etbuild test` runs them. For example `{photos: {files:
            "photos/*.png", loader: "images:load"}}`.
        defaults: Defaults for all methods. A method can override each of them. For example `{partitioners: [xnnpack]}`.
        constant_methods: Methods that only return a constant, such as sizes and token ids for the application. For
            example `{get_max_seq_len: 128, get_eos_ids: [1, 2]}`.
        named_data: The weights that are stored outside the .pte, by tag. Each tag becomes one NAME.TAG.ptd, whose bytes
            depend only on these weights. For example `{weights: {parameters: ["*"]}}`.
        custom_ops: Operators that are not PyTorch's. They are registered before the model is made, and again before it
            is lowered. At run time, ExecuTorch needs a kernel for each operator that no backend takes. For example
            `{libraries: [libdemo_ops.so]}`.
        runner: The runner that the program is for. `executorch-llm/v1`: ExecuTorch's text runner (`TextLLMRunner`).
            `executorch-asr/v1`: its runner for an encoder and a decoder (`AsrRunner`, `Seq2SeqRunner`), which takes
            features of speech; text needs a loop in the application. `executorch-multimodal/v1`: its runner for images
            and text (`MultimodalRunner`). The constant methods, such as `get_max_seq_len` and `get_eos_ids`, are
            written from the model's configuration; `constant_methods` overrides each of them. What the runner would run
            wrongly is an error. For example `executorch-llm/v1`.
        applications: The kinds of applications that must be able to load the program: `android`, `ios`, `macos`,
            `react-native-executorch`, `wheel` or `bare-metal`. What such an application cannot load is an error. A
            change here lowers nothing again. For example `[android, ios]`, `[{kind: android, kernels:
            ["mylib::op.out"]}]`.
        tokenizer: Declared inputs that travel with the program: the tokenizer, and what its reader needs in addition,
            such as tokenizer_config.json. They become artifacts in the directory `NAME.tokenizer`. For example
            `tokenizer.json`, `[tokenizer.json, tokenizer_config.json]`.
        metadata: What people should know about the program. It is in the index, and in the annotations of a package. It
            changes the key and the report of a build, and no other artifact. For example `{version: "1.2.0", license:
            Apache-2.0}`.
        share_mutable_buffers: Whether methods share the buffers that they write to, such as a KV cache, by name. The
            runtime has to give the methods the same memory: `Module(..., share_memory_arenas = true)` in C++. The build
            fails if a backend keeps such a buffer inside its delegates. For example `true`.
        passes: Graph passes from code, for each of ExecuTorch's hook points. For example `{edge:
            ["passes:edge_passes"]}`.
        edge_compile: Fields of ExecuTorch's EdgeCompileConfig. For example `{check_ir_validity: false}`.
        executorch: Fields of ExecuTorch's ExecutorchBackendConfig. For example `{memory_planning: {alloc_graph_input:
            false}}`.
        report: The content of the report. A change here lowers nothing again. For example `{blobs: false}`.
        checks: Limits for the program. A build that breaks one fails with exit code 3 and says by how much. A change
            here lowers nothing again. For example `{max_program_bytes: 5000000}`.
        tests: What `etbuild test` runs in addition to the example inputs, and how exact the program must be. A change
            here builds nothing again. For example `{tolerance: {rtol: 0.001}, random: 3}`.
        qualify: Only in a variant: what it must reach to be kept. `etbuild build --variant all` leaves out a variant
            that does not reach it, and says why. A change here builds nothing again. For example `{size: {at_most:
            0.95, of: base}}`.
    """

    _KEYS = {"applications": "for"}

    schema: Literal["executorch-model/v1"]
    name: kinds.FileStem
    model: parts.Model | None = None
    recipe: Annotated[Part, PluginKeys("recipe.call")] | None = None
    parameters: dict[kinds.Identifier, Parameter] = {}
    variants: Annotated[
        dict[kinds.VariantName, Annotated[kinds.Options, Says(text=_VARIANT)]], Says(maxProperties=100)
    ] = {}
    methods: Annotated[dict[kinds.Identifier, parts.Method], Says(minProperties=1)] | None = None
    samples: dict[kinds.FileStem, Annotated[Part, PluginKeys("samples")]] = {}
    defaults: Defaults = Defaults()
    constant_methods: dict[kinds.Identifier, ConstantValue] = {}
    named_data: dict[kinds.FileStem, parts.NamedData] = {}
    custom_ops: parts.CustomOps = parts.CustomOps()
    runner: (
        Annotated[Literal["executorch-llm/v1", "executorch-asr/v1", "executorch-multimodal/v1"], Says(group="runner")]
        | None
    ) = None
    applications: (
        Annotated[
            tuple[Annotated[Part, PluginKeys("for"), Says(text=_KIND)], ...],
            Says(one=True, minItems=1, uniqueItems=True, default=...),
        ]
        | None
    ) = None
    tokenizer: Annotated[tuple[kinds.InputName, ...], Says(one=True, minItems=1, uniqueItems=True)] | None = None
    metadata: Metadata | None = None
    share_mutable_buffers: bool = False
    passes: parts.Passes = parts.Passes()
    edge_compile: parts.EdgeCompile = parts.EdgeCompile()
    executorch: ExecutorchOptions = ExecutorchOptions()
    report: parts.ReportOptions = parts.ReportOptions()
    checks: Checks = Checks()
    tests: Annotated[Part, PluginKeys("tests"), Says(default={})] | None = None
    qualify: Annotated[Part, PluginKeys("qualify")] | None = None
