"""The parts of plans, with their types and their form as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Protocol

from etbuild import backends
from etbuild.errors import DocumentPath
from etbuild.plan import kinds
from etbuild.plan.kinds import Names, Options
from etbuild.plan.part import PLAN_ONLY, Part, PluginKeys, Says


class FactoryCall(Part):
    """A value that a callable of the declared sources returns.

    Attributes:
        factory: The callable, as `module:callable`.
        kwargs: The keyword arguments.
    """

    factory: str
    kwargs: Options = {}


class TensorExample(Part):
    """A tensor as example input: its sizes, the PyTorch name of its dtype, and the value of its elements."""

    shape: tuple[kinds.Count, ...]
    dtype: str = "float32"
    fill: str | float = "random"


class FileExample(Part):
    """An example input from a declared file.

    Attributes:
        file: The name of the file.
        key: The name of the tensor in the file; None if the file holds only one tensor.
        loader: The `module:callable` that reads the file; None if the driver does.
    """

    _LEFT_OUT = ("key", "loader")

    file: str
    key: str | None = None
    loader: str | None = None


class ValueExample(Part):
    """An example input that is not a tensor: a number, a boolean, a string or None."""

    value: object


class ModelExample(Part):
    """An example input whose shape follows from the configuration of the model.

    Attributes:
        of_model: What it is, such as `features`, `encoder_outputs`, `image`, `sound` or a time `series`.
        length: The size of its dimension of tokens, or the length of a sound; None if the configuration says that too.
    """

    _LEFT_OUT = ("length",)

    of_model: Annotated[
        Literal["features", "encoder_outputs", "pixel_values", "embeddings", "image", "sound", "series"],
        Says(group="example_input"),
    ]
    length: int | None = None


class ContainerExample(Part):
    """An example input that contains others.

    Attributes:
        kind: `list`, `tuple` or `dict`.
        parts: The inputs in it, by index or key.
    """

    _PLAN = {
        "type": "object",
        "minProperties": 1,
        "maxProperties": 1,
        "additionalProperties": False,
        "properties": {
            **{kind: {"type": "array", "items": {"$ref": "#/$defs/example"}} for kind in ("list", "tuple")},
            "dict": {"type": "object", "additionalProperties": {"$ref": "#/$defs/example"}},
        },
    }

    kind: str
    parts: Mapping[int | str, Example]

    def to_json(self) -> dict[str, object]:
        """An object with one key, the kind."""
        content = {key: part.to_json() for key, part in self.parts.items()}
        return {self.kind: content if self.kind == "dict" else list(content.values())}


Leaf = TensorExample | FactoryCall | FileExample | ValueExample | ModelExample
CONTAINERS = ("list", "tuple", "dict")


def read_example(document: Mapping[str, Any]) -> Example:
    """Reads an example input from its JSON."""
    for kind in CONTAINERS:
        if document.keys() == {kind}:
            content = document[kind]
            items = content.items() if kind == "dict" else enumerate(content)
            return ContainerExample(kind, {key: read_example(part) for key, part in items})
    kinds: dict[str, type[Leaf]] = {
        "value": ValueExample,
        "factory": FactoryCall,
        "file": FileExample,
        "of_model": ModelExample,
    }
    return next((kinds[key] for key in kinds if key in document), TensorExample).from_json(document)


Example = Annotated[
    TensorExample | FactoryCall | FileExample | ValueExample | ModelExample | ContainerExample,
    read_example,
    Says(written="ExampleInput"),
]


class Dim(Part):
    """A dynamic dimension. Its size is `times * SIZE + plus`, where SIZE is the size of the dimension that it names.

    Attributes:
        dim: The name.
        min: The smallest SIZE.
        max: The largest SIZE; None if there is no limit.
        multiple_of: A number that divides each SIZE.
        times: Different from 1 only for a derived dimension.
        plus: Different from 0 only for a derived dimension.
    """

    _LEFT_OUT = ("multiple_of", "times", "plus")

    dim: str
    min: int
    max: int | None
    multiple_of: int = 1
    times: int = 1
    plus: int = 0

    @property
    def text(self) -> str:
        """The size as manifests state it, for messages: `2*seq + 1`."""
        sign = "-" if self.plus < 0 else "+"
        times = f"{self.times}*" if self.times != 1 else ""
        return f"{times}{self.dim}" + (f" {sign} {abs(self.plus)}" if self.plus else "")


def read_shapes(document: Any) -> Shapes:
    """Reads dynamic shapes from their JSON."""
    if isinstance(document, dict) and isinstance(document.get("dim"), str):
        return Dim.from_json(document)
    if isinstance(document, dict):
        return {key: read_shapes(part) for key, part in document.items()}
    return None if document is None else tuple(map(read_shapes, document))


_NESTED = {"$ref": "#/$defs/shapes"}
_IN_PLAN = {
    "type": ["null", "array", "object"],
    "items": _NESTED,
    "if": {"type": "object", "required": ["dim"], "properties": {"dim": {"type": "string"}}},
    "then": {"$ref": "#/$defs/dim"},
    "else": {"additionalProperties": _NESTED},
}
Shapes = Annotated[
    Dim | tuple["Shapes", ...] | dict[str, "Shapes"] | None,
    read_shapes,
    Says(written="WrittenShapes", plan=_IN_PLAN),
]
"""Dynamic shapes, in the form of their input. None means that everything is fixed."""


_CALLABLE = {"description": "`module:callable`.", "type": "string", "pattern": ":"}


class BackendEntry(Part, short="backend", also=str):
    """A partitioner or a quantizer: the name of its backend, and the backend's options.

    Attributes:
        backend: Name of the backend. For example `xnnpack`.
        options: The backend's own options.
    """

    _PLAN = {
        "if": {"properties": {"backend": {"enum": ["custom"]}}},
        "then": {"properties": {"options": {"required": ["factory"], "properties": {"factory": _CALLABLE}}}},
    }

    backend: str
    options: Options = {}

    @property
    def callables(self) -> Names:
        """Every `module:callable` of the declared sources in the options of a partitioner."""
        return backends.callables(self.backend, self.options)

    @property
    def quantizer_callables(self) -> Names:
        """Every `module:callable` of the declared sources in the options of a quantizer."""
        return backends.callables(self.backend, self.options, "quantizer_callables")


Partitioner = Annotated[BackendEntry, Says("partitioner")]
Partitioners = Annotated[tuple[Partitioner, ...], Says("partitioners")]


class Quantize(Protocol):
    """How a plug-in quantizes a method: the section `quantize`, which says more than the core asks."""

    @property
    def after_export(self) -> bool:
        """Whether the graph of the exported method is quantized."""

    @property
    def trains(self) -> bool:
        """Whether the method is trained to find the scales."""

    @property
    def keeps(self) -> bool:
        """Whether layers keep the integers of a packed checkpoint."""

    @property
    def needs_content(self) -> bool:
        """Whether it looks at more than one weight at a time, so that the export must know their content."""

    @property
    def quantizers(self) -> Mapping[DocumentPath, BackendEntry]:
        """The quantizers of backends, by their place in the section."""

    @property
    def callables(self) -> Iterator[str]:
        """Every `module:callable` in it."""

    @property
    def data_names(self) -> Mapping[str, DocumentPath]:
        """The declared inputs that it names, with their place in the section."""


Quantization = Annotated[Annotated[Quantize, PluginKeys("quantize")] | None, Says("quantize", default=None)]


class HuggingFace(Protocol):
    """A model of Hugging Face: the section `model.huggingface` of a plug-in, which says more than the core asks."""

    @property
    def task(self) -> str | None:
        """What the model is for, by its name in the group `task` of plug-ins."""

    @property
    def data_names(self) -> Mapping[str, DocumentPath]:
        """The declared files that hold its settings, each with its place in the manifest."""

    def export_hint(self, error: BaseException) -> str | None:
        """What to do if torch.export refuses the code of the model."""

    @property
    def shapes_hint(self) -> str | None:
        """What to do if torch.export refuses the shapes of a method; None if the manifest has them."""


class Adapter(Protocol):
    """The names of the files of an adapter: an entry of `model.adapters` of a plug-in."""

    @property
    def config(self) -> str:
        """The file with the configuration."""

    @property
    def weights(self) -> str:
        """The file with the weights."""


_FLOATS = ("float32", "float16", "bfloat16")
_Dtype = Annotated[Literal[_FLOATS], Says(type="string")] | Annotated[Part, PluginKeys("model.dtype")]  # type: ignore[valid-type]


class ModuleSource(Part):
    """Where the module comes from.

    Attributes:
        factory: A callable in the declared sources that returns the torch.nn.Module. It may return a dict of several
            modules; each `entry` then starts with a key of the dict. It is called once, with `kwargs`, after the random
            generators are seeded. For example `"model:create"`.
        huggingface: Replaces `factory`: a model of Hugging Face's transformers (extra `huggingface`), made from its
            configuration only. Nothing is downloaded. Without `weights` its parameters are random and depend on `seed`.
            Its only entry, unless there is a task, is `forward`, which takes the inputs of the class and returns a
            tuple of tensors. For example `{class: LlamaForCausalLM, config: config.json, cache: {max_length: 128}}`.
        kwargs: Keyword arguments of the factory. For example `{layers: 2, dim: 64}`.
        seed: Seeds the generators of PyTorch, NumPy (`numpy.random`, with 32 bits of the seed) and Python (`random`)
            before the module is made. PyTorch's random numbers are the same on all x86-64 machines and different on
            other architectures. If the bytes must be the same on both, take weights from a file or compute them
            exactly. For example `0`.
        dtype: The dtype of the module's floating-point parameters and buffers. A module of `factory` is converted after
            it is made; one of `huggingface` is made by transformers in this dtype. Floating-point tensors of `weights`
            are converted to the dtype of their parameter, one by one. Without this key, the module keeps its dtypes,
            and a checkpoint of another dtype is an error. A mapping says that methods compute in 16-bit floats, and
            have float32 inputs and outputs. For example `float32`, `{compute: float16, keep: {layers: [norm]}}`.
        precision: The mapping of `dtype`.
        modules: Modules in the declared sources that the model imports by computed names. Modules in import statements
            need not be listed. For example `[layers.rotary]`.
    """

    _LEFT_OUT: ClassVar[tuple[str, ...]] = ("dtype", "precision")

    factory: kinds.CallableName | None = None
    huggingface: Annotated[HuggingFace, PluginKeys("model.huggingface")] | None = None
    kwargs: Options = {}
    seed: kinds.Count = 0
    modules: kinds.ModuleNames = ()
    dtype: Annotated[str, Says(written=_Dtype, plan={"enum": [*_FLOATS], "type": "string"})] | None = None
    precision: Annotated[Any, PluginKeys("model.dtype"), PLAN_ONLY] = None

    @property
    def plugin(self) -> str | None:
        """The `module_source` of plug-ins that makes the module; None if a factory or nothing does."""
        return None if self.huggingface is None else "huggingface"


class WeightsFile(Part, section="Checkpoint", definition="checkpoint", short="file", also=kinds.InputName):
    """A checkpoint, and how its tensors become those of the module. For example `{file: net.pt, key: ema}`.

    Attributes:
        file: The name of a declared input: a file, an index or a folder. For example `model.safetensors.index.json`.
        key: The key of the state dict in a .pt, .pth, .bin or .ckpt file that holds several. A file with one state dict
            needs no key. For example `state_dict`.
        rename: New names for tensors: for a pattern of names in the checkpoint, the name in the module. `*` stands for
            any text, also for none, and takes as little as it can; the name in the module repeats the texts in their
            order. If several patterns match a name, the longest one counts. For example `{model.*: "*"}`.
        ignore: Patterns for names in the checkpoint that are not read. `*` stands for any text, `?` for one character,
            and `[ab]` for one of those in the brackets. For example `["*.num_batches_tracked"]`.
        optional: Patterns for names in the module that the checkpoint may lack: these keep the values of the factory.
            `*`, `?` and `[ab]` mean what they mean in `ignore`. With it, the export reads the weights, so that new
            weights export again. For example `["head.*"]`.
    """

    _LEFT_OUT = ("key", "rename", "ignore", "optional")

    file: kinds.InputName
    key: kinds.Text | None = None
    rename: Annotated[
        dict[str, Annotated[kinds.Text, Says(text='A name or pattern. For example `"*"`.')]],
        Says(minProperties=1, default=...),
    ] = {}
    ignore: Annotated[kinds.NamePatterns, Says(default=...)] = ()
    optional: Annotated[kinds.NamePatterns, Says(default=...)] = ()

    def to_json(self) -> Any:
        """The name of the file, or an object if there are rules."""
        written = super().to_json()
        return written if len(written) > 1 else self.file


_ENTRY = "The name of a declared input, or a mapping with `file` and rules. For example `weights.safetensors`."
Weights = Annotated[
    tuple[Annotated[WeightsFile, Says(text=_ENTRY)], ...],
    Says(one=True, minItems=1, uniqueItems=True, default=...),
]


_FOLDER = (
    "A folder with adapter_config.json and adapter_model.safetensors, as PEFT's `save_pretrained` writes it, or a "
    "mapping with the names of both files. For example `adapters/math`."
)


class Model(ModuleSource):
    """Where the module comes from, the checkpoints that contain its weights, and its adapters by name.

    Attributes:
        weights: The checkpoint that holds the module's state dict, as the name of a declared input or as a mapping with
            rules. The input is a .safetensors file; a .pt, .pth, .bin or .ckpt file of torch.save (read with
            weights_only=True); an index such as model.safetensors.index.json, with its shards beside it; a folder with
            model.safetensors, pytorch_model.bin or the index of one of them; or, for a model of `huggingface`, a .gguf
            file (extra `gguf`). Or a list of such checkpoints that together hold the state dict. Without this key, the
            module keeps the values that the factory gave it. For example `weights.safetensors`,
            `[weights/backbone.safetensors, head.safetensors]`, `{file: model.safetensors.index.json, rename: {model.*:
            "*"}}`.
        adapters: LoRA adapters of PEFT, by name. A method with `adapter: NAME` computes with that adapter, and other
            methods without one. The weights of an adapter are in a file of their own, NAME.ADAPTER.ptd, as if it was a
            tag of `named_data`; the .pte does not depend on them. With `task: text-generation` and without `methods`,
            there is a method `forward_ADAPTER` for each adapter. For example `{math: adapters/math}`.
    """

    _LEFT_OUT = (*ModuleSource._LEFT_OUT, "adapters")

    weights: Weights = ()
    adapters: dict[kinds.Identifier, Annotated[Adapter, PluginKeys("model.adapters"), Says(text=_FOLDER)]] = {}


class RecipeCall(Protocol):
    """An export recipe: the section `recipe` of a plug-in."""

    @property
    def callables(self) -> Names:
        """Every `module:callable` of the declared sources in it."""


class Recipe(RecipeCall, Protocol):
    """An export recipe, and what the manifest says itself."""

    @property
    def backends(self) -> Names:
        """The backends that the recipe lowers to. Empty if they are unknown."""

    @property
    def said(self) -> Mapping[str, Names]:
        """For each of ExecuTorch's configurations, the fields that the manifest sets itself."""

    @property
    def call(self) -> RecipeCall:
        """The recipe without what the plan adds to it."""


class Runner(Part):
    """The contract of a runner, and the constant methods that the manifest sets itself."""

    contract: str
    said: Names


class NamedData(Part):
    """The weights of one tag.

    Attributes:
        parameters: Patterns for the names of the module's parameters and buffers. `*` matches any sequence of
            characters, including dots; `?` matches one character; `[abc]` matches one of the listed characters. For
            example `["*"]`, `["backbone.*"]`.
        shard_size: Splits the tag's weights, in the order of the module, into files of at most this many bytes: a
            directory NAME.TAG with files TAG-SHA256.ptd. A changed weight changes the name of its own file only. A
            larger weight gets its own file. Without this key, the tag is one file. For example `67108864`.
        adapter: Whether they are those of an adapter, with the name of the tag. Then no other tag can have them.
    """

    _LEFT_OUT = ("adapter",)

    parameters: kinds.Patterns
    shard_size: kinds.Size | None = None
    adapter: Annotated[bool, PLAN_ONLY] = False


class CustomOps(Part):
    """The sources of operators that do not belong to PyTorch: declared shared libraries, and Python modules.

    Attributes:
        libraries: Shared libraries that register operators with PyTorch: names of declared inputs. For example
            `[libdemo_ops.so]`.
        modules: Python modules that register operators when they are imported: in the declared sources, or installed.
            For example `[executorch.extension.llm.custom_ops.custom_ops]`.
    """

    libraries: kinds.InputNames = ()
    modules: kinds.ModuleNames = ()

    @property
    def library_names(self) -> dict[str, DocumentPath]:
        """The declared libraries, each with its place in the manifest."""
        return {name: ("custom_ops", "libraries", index) for index, name in enumerate(self.libraries)}


class LowerPasses(Part):
    """Callables that return passes, for each point of lowering at which ExecuTorch accepts passes.

    Attributes:
        edge: Called before lowering with a method's name and its ExportedProgram. Returns the passes that run over the
            method in the edge dialect, before it is partitioned. For example `["passes:edge_passes"]`.
        edge_manager: Called with the EdgeProgramManager of all lowered methods. Returns the passes that run over them:
            one list for all methods, or a mapping by method. For example `["passes:after_lowering"]`.
        executorch: Called without arguments. Returns the passes that run over each method before its memory is planned.
            For example `["passes:last_passes"]`.
    """

    edge: kinds.Callables = ()
    edge_manager: kinds.Callables = ()
    executorch: kinds.Callables = ()


class Passes(LowerPasses):
    """The passes of lowering, and the callables that change a method after its export.

    Attributes:
        aten: Called after the export with a method's name and its ExportedProgram. Returns an ExportedProgram. For
            example `["passes:simplify"]`.
    """

    aten: kinds.Callables = ()


class EdgeCompile(Part):
    """Fields of ExecuTorch's `EdgeCompileConfig`.

    Attributes:
        check_ir_validity: Whether ExecuTorch checks that the graph keeps to the edge dialect. For example `false`.
        skip_dim_order: Whether operators keep their memory formats instead of dim orders. For example `true`.
        core_aten_ops_exception_list: Operators that may be in the graph, although they are not core ATen and
            ExecuTorch's runtime has no kernel for them. For example `["aten::unfold"]`.
        preserve_ops: Operators that are not decomposed. For example `["aten::hardswish"]`.
    """

    check_ir_validity: bool = True
    skip_dim_order: bool = False
    core_aten_ops_exception_list: kinds.Operators = ()
    preserve_ops: kinds.Operators = ()


class ToOutVarPass(Part):
    """Arguments of ExecuTorch's `ToOutVarPass`.

    Attributes:
        ignore_to_out_var_failure: Whether an operator without an out variant may stay unchanged. For example `true`.
    """

    ignore_to_out_var_failure: bool = False


class PropagateDevice(Part):
    """Arguments of ExecuTorch's `PropagateDeviceConfig`.

    Attributes:
        skip_h2d_for_method_inputs: Whether inputs for a device's delegate are already on the device: for every method,
            or by method.
        skip_d2h_for_method_outputs: Whether outputs of a device's delegate stay on the device: for every method, or by
            method.
    """

    skip_h2d_for_method_inputs: kinds.BooleanByMethod = False
    skip_d2h_for_method_outputs: kinds.BooleanByMethod = False

    def of_method(self, name: str) -> PropagateDevice:
        """What holds for a method."""
        given = (self.skip_h2d_for_method_inputs, self.skip_d2h_for_method_outputs)
        return PropagateDevice(*(each.get(name, False) if isinstance(each, dict) else each for each in given))


class Executorch(Part):
    """Fields of ExecuTorch's `ExecutorchBackendConfig`, with its names.

    Attributes:
        sym_shape_eval_pass: The size that memory is planned for if it is dynamic: the largest one (constraint_based),
            or the example's (hint_based, which ExecuTorch plans to remove). For example `constraint_based`.
        to_out_var_pass: Arguments of ExecuTorch's ToOutVarPass. For example `{ignore_to_out_var_failure: true}`.
        propagate_device_config: Arguments of ExecuTorch's PropagateDeviceConfig. For example
            `{skip_h2d_for_method_inputs: true}`.
        extract_delegate_segments: Whether the data of delegates is in separate segments, which the runtime can free.
            For example `false`.
        segment_alignment: Alignment of segments and of named data in bytes, a power of two. For example `4096`.
        constant_tensor_alignment: Minimum alignment of constant tensors in bytes, a power of two. Default: the
            alignment of the format. For example `64`.
        delegate_alignment: Minimum alignment of the data of delegates in bytes, a power of two. Default: the alignment
            of the format. For example `64`.
        remove_view_copy: Whether copies that only change a shape are replaced with views. For example `false`.
        external_mutable_weights: Whether the weights that a method trains are stored outside the program. They go to
            the file of their tag, so that each must be in `named_data`. For example `true`.
        emit_mutable_buffer_names: Whether the program holds the names of the buffers that methods write to. For example
            `true`.
        do_quant_fusion_and_const_prop: Whether operators between quantize and dequantize are fused, and constants are
            computed at build time. For example `true`.
        run_reinplace_pass: Whether operators write to inputs that nothing reads afterwards. For example `true`.
        reinplace_extra_ops: More operators for `run_reinplace_pass`. For example `["aten::index_copy"]`.
        enable_non_cpu_memory_planning: Whether the memory of devices is planned separately from the CPU's. For example
            `false`.
    """

    to_out_var_pass: ToOutVarPass = ToOutVarPass()
    propagate_device_config: PropagateDevice = PropagateDevice()
    extract_delegate_segments: bool = True
    segment_alignment: kinds.Alignment = 128
    constant_tensor_alignment: kinds.Alignment | None = None
    delegate_alignment: kinds.Alignment | None = None
    sym_shape_eval_pass: Literal["constraint_based", "hint_based"] = "constraint_based"
    remove_view_copy: bool = True
    external_mutable_weights: bool = False
    emit_mutable_buffer_names: bool = False
    do_quant_fusion_and_const_prop: bool = False
    run_reinplace_pass: bool = False
    reinplace_extra_ops: kinds.Operators = ()
    enable_non_cpu_memory_planning: bool = True

    def of_method(self, name: str) -> Executorch:
        """A copy without what is only read for other methods, or for the file of the whole program."""
        return self.replace(
            propagate_device_config=self.propagate_device_config.of_method(name),
            extract_delegate_segments=True,
            segment_alignment=1,
            constant_tensor_alignment=None,
            delegate_alignment=None,
            external_mutable_weights=False,
        )


class MemoryPlanning(Part, definition="memoryPlanning", default={}):
    """Arguments of ExecuTorch's MemoryPlanningPass. For example `{alloc_graph_input: false}`.

    Attributes:
        memory_planning_algo: One of ExecuTorch's algorithms, `greedy` or `naive`, or a callable in the declared sources
            as `module:callable`. For example `naive`, `"memory:plan"`.
        allow_lifetime_and_storage_overlap: Whether tensors that are in use at the same time may overlap. For example
            `true`.
        alloc_graph_input: Whether memory is planned for inputs. If false, the application provides it. For example
            `false`.
        alloc_graph_output: Whether memory is planned for outputs. If false, the application provides it. For example
            `false`.
        alloc_mutable_buffers: Whether memory is planned for buffers that a method writes to. If false, the application
            provides it, by the names from `emit_mutable_buffer_names`. For example `false`.
        alignment: Alignment of planned tensors in bytes, a power of two. For example `64`.
    """

    memory_planning_algo: kinds.PlanningAlgorithm = "greedy"
    allow_lifetime_and_storage_overlap: bool = False
    alloc_graph_input: bool = True
    alloc_graph_output: bool = True
    alloc_mutable_buffers: bool = True
    alignment: kinds.Alignment = 16


class ReportOptions(Part, section="Report"):
    """What the report lists.

    Attributes:
        operators: List the number of operators of each method, delegated or not. For example `false`.
        blobs: List each blob with its size. If false, list only their number and total size. For example `false`.
    """

    operators: bool = True
    blobs: bool = True


class ExportMethod(Part):
    """What the export of a method depends on.

    Attributes:
        entry: A method of the module, or a submodule, by dotted name. This is what is exported. If the factory returns
            several modules, the name starts with the module's key. Default: the name of this method, or `forward` for a
            model of Hugging Face. For example `forward`, `decoder`, `decoder.step`.
        adapter: The name of one of the model's `adapters`. The method computes with it. For example `math`.
        example_inputs: The positional inputs that the method is exported with, in order. The program depends on the
            shapes and dtypes of tensors and on plain values, but not on the values in tensors. `[]` is for a method
            without inputs. For example `[{shape: [1, 16], dtype: int64}]`.
        example_kwargs: The keyword inputs that the method is exported with, by name. The program takes them after the
            positional ones, in the order of the method's parameters. For example `{mask: {shape: [1, 16], dtype:
            bool}}`.
        dynamic_shapes: The dynamic sizes of each positional input. `null`: all sizes are fixed. For a tensor: a list
            with one entry per dimension, `null` or a named range. For a list or tuple: a list with one entry per
            element. For a mapping: a mapping by key. For example `[[null, {dim: seq, min: 2, max: 128}], null]`.
        program: Name of a declared input: a .pt2 file that torch.export.save wrote. It replaces `entry` and
            `example_inputs`, and contains its weights. For example `encoder.pt2`.
        dynamic_kwargs_shapes: The dynamic sizes of keyword inputs, by name, as in `dynamic_shapes`. Sizes that are not
            listed are fixed. For example `{mask: [null, {dim: seq, min: 2, max: 128}]}`.
        from_recipe: What the recipe decides, some of `normalize.DECIDES`.
        samples: A name in `samples`. The first of these stands for missing `example_inputs`. For example `photos`.
    """

    _LEFT_OUT: ClassVar[tuple[str, ...]] = ("adapter", "samples")

    program: kinds.InputName | None
    entry: kinds.Entry
    strict: kinds.Strict
    quantize: Quantization
    example_inputs: tuple[Example, ...]
    example_kwargs: Annotated[dict[kinds.Identifier, Example], Says(minProperties=1)]
    dynamic_shapes: tuple[Shapes, ...]
    dynamic_kwargs_shapes: dict[str, Shapes]
    from_recipe: Annotated[Names, PLAN_ONLY]
    adapter: kinds.Identifier | None = None
    samples: Annotated[Any, PluginKeys("samples"), Says(written=kinds.FileStem)] = None

    @property
    def quantized_after_export(self) -> bool:
        """Whether the manifest says how its graph is quantized after the export."""
        return self.quantize is not None and self.quantize.after_export

    @property
    def carries_content(self) -> bool:
        """Whether the exported method contains the content of weights. This is so if the export makes it, as it does
        for quantized weights, or if an exported program brings it. A recipe may quantize too."""
        return self.quantize is not None or self.program is not None or "quantize" in self.from_recipe

    @property
    def needs_content(self) -> bool:
        """Whether its export needs the content of weights. What looks at one weight at a time can quantize it later."""
        if self.program is not None or "quantize" in self.from_recipe:
            return True
        return self.quantize is not None and self.quantize.needs_content

    def leaves(self, path: DocumentPath) -> Iterator[tuple[Leaf, DocumentPath]]:
        """Every tensor and plain value of the inputs, with its place below `path`."""
        for index, example in enumerate(self.example_inputs):
            yield from leaves_of(example, (*path, "example_inputs", index))
        for name, example in self.example_kwargs.items():
            yield from leaves_of(example, (*path, "example_kwargs", name))

    def data_names(self, path: DocumentPath) -> Iterator[tuple[str, DocumentPath]]:
        """The declared inputs that the export of this method reads, each with its place below `path`. Leaves out those
        that the export of every method reads."""
        if self.program is not None:
            yield self.program, (*path, "program")
        for name, place in self.quantize.data_names.items() if self.quantize is not None else ():
            yield name, (*path, "quantize", *place)
        for example, place in self.leaves(path):
            if isinstance(example, FileExample):
                yield example.file, (*place, "file")
        if self.samples is not None:
            yield self.samples.files, (*path, "samples")

    @property
    def callables(self) -> Iterator[str]:
        """Every `module:callable` in it."""
        yield from callables_of(example for example, _ in self.leaves(()))
        for section in (self.quantize, self.samples):
            yield from section.callables if section is not None else ()


def callables_of(leaves: Iterable[Leaf]) -> Iterator[str]:
    """Every `module:callable` that makes one of these inputs."""
    for example in leaves:
        if isinstance(example, FactoryCall):
            yield example.factory
        elif isinstance(example, FileExample) and example.loader is not None:
            yield example.loader


def leaves_of(example: Example, path: DocumentPath) -> Iterator[tuple[Leaf, DocumentPath]]:
    """The inputs in an example input that contain no others, each with its place below `path`."""
    if not isinstance(example, ContainerExample):
        yield example, path
        return
    for key, part in example.parts.items():
        yield from leaves_of(part, (*path, example.kind, key))


class LowerMethod(Part):
    """What lowering a method depends on: its partitioners, and whether those of the recipe come before them."""

    partitioners: tuple[BackendEntry, ...]
    from_recipe: bool


class Method(ExportMethod, definition="method", needs=()):
    """One method of the program. For example `{example_inputs: [{shape: [1, 16]}]}`.

    Attributes:
        memory_planning: Overrides `executorch.memory_planning` for this method.
    """

    _LEFT_OUT: ClassVar[tuple[str, ...]] = (*ExportMethod._LEFT_OUT, "io")

    partitioners: Annotated[Partitioners, Says(default=...)] = ()
    memory_planning: MemoryPlanning = MemoryPlanning()
    io: Annotated[Any, PluginKeys("methods.io")] = None

    @property
    def of_lowering(self) -> LowerMethod:
        """What its lowering depends on."""
        return LowerMethod(self.partitioners, "partitioners" in self.from_recipe)
