"""The parts of plans, with their types and their form as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar

from etbuild import backends
from etbuild.backends import recipes
from etbuild.errors import DocumentPath
from etbuild.manifest.sections import Compare, Options, Ranges
from etbuild.plan.part import Part

QUANTIZE_HOOKS = ("pre_prepare", "post_prepare", "pre_convert", "post_convert")
"""The points of quantization at which passes over a method run, in order."""
Names = tuple[str, ...]


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

    shape: tuple[int, ...]
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
        of_model: What it is: `features`, `encoder_outputs`, `pixel_values`, `embeddings`, `image` or `sound`.
        length: The size of its dimension of tokens, or the length of a sound; None if the configuration says that too.
    """

    _LEFT_OUT = ("length",)

    of_model: str
    length: int | None = None


class ContainerExample(Part):
    """An example input that contains others.

    Attributes:
        kind: `list`, `tuple` or `dict`.
        parts: The inputs in it, by index or key.
    """

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
    TensorExample | FactoryCall | FileExample | ValueExample | ModelExample | ContainerExample, read_example
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


Shapes = Annotated[Dim | tuple["Shapes", ...] | dict[str, "Shapes"] | None, read_shapes]
"""Dynamic shapes, in the form of their input. None means that everything is fixed."""


class BackendEntry(Part):
    """A partitioner or a quantizer: the name of its backend, and the backend's options."""

    backend: str
    options: Options = {}

    @classmethod
    def from_json(cls, document: str | Mapping[str, Any]) -> BackendEntry:
        """Reads an object, or the name of a backend without options."""
        return super().from_json({"backend": document} if isinstance(document, str) else document)

    @property
    def callables(self) -> Names:
        """Every `module:callable` of the declared sources in the options of a partitioner."""
        return backends.callables(self.backend, self.options)

    @property
    def quantizer_callables(self) -> Names:
        """Every `module:callable` of the declared sources in the options of a quantizer."""
        return backends.callables(self.backend, self.options, "quantizer_callables")


class TorchaoEntry(Part):
    """Layers whose weights torchao quantizes before the export.

    Attributes:
        config: The name of one of torchao's configurations, or a `module:callable` that returns one.
        modules: Patterns for the names of layers.
        layers: Kinds of layers.
        group_size: For a named configuration, the number of weights of a row that share a scale; None for the whole
            row. The default is 32 for weights of 4 bits.
        kwargs: Keyword arguments of the callable.
        scales: For a named configuration, how torchao finds the scales; None for its default.
        fitting: Whether layers with rows that are not a multiple of `group_size` are left to later entries.
    """

    _LEFT_OUT = ("scales", "fitting")

    config: str
    modules: Names = ("*",)
    layers: Names = ("linear",)
    group_size: int | None = None
    kwargs: Options = {}
    scales: str | None = None
    fitting: bool = False

    @property
    def from_code(self) -> bool:
        """Whether a callable returns the configuration."""
        return ":" in self.config

    @property
    def keeps(self) -> bool:
        """Whether layers keep the integers of a packed checkpoint, which later entries do not quantize again."""
        return self.config == "packed"

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> TorchaoEntry:
        """Reads the object. A named configuration has no `kwargs`; one from a callable has no `group_size`."""
        sizes = {"8da4w": 32, "int4": 32}
        return super().from_json({"group_size": sizes.get(document["config"]), **document})

    def to_json(self) -> Any:
        """The object with either `kwargs` or `group_size`."""
        content = super().to_json()
        del content["group_size" if self.from_code else "kwargs"]
        return content


class BatchesFile(Part):
    """Calibration batches from a declared file.

    Attributes:
        file: The name of the file.
        keys: For each input, the name of its tensor in the file; None if the file has one tensor for the only input.
    """

    _LEFT_OUT = ("keys",)

    file: str
    keys: Names | None = None


class OwnInputs(Part):
    """Calibration on the example inputs."""


def read_calibration(document: Mapping[str, Any]) -> Calibration:
    """Reads what a method is calibrated on from its JSON."""
    if "file" in document:
        return BatchesFile.from_json(document)
    return FactoryCall.from_json(document) if "factory" in document else OwnInputs.from_json(document)


Calibration = Annotated[FactoryCall | BatchesFile | OwnInputs, read_calibration]


class Pt2e(Part):
    """How a method is quantized after its export.

    Attributes:
        quantizers: The quantizers; empty to use those of the recipe.
        calibration: The data for calibration; None if the recipe decides or `qat` finds the ranges.
        qat: The `module:callable` that trains the method; None for no training.
        passes: Callables by hook, one of `QUANTIZE_HOOKS`.
    """

    quantizers: tuple[BackendEntry, ...]
    calibration: Calibration | None
    qat: str | None
    passes: dict[str, Names]

    @property
    def callables(self) -> Iterator[str]:
        """Every `module:callable` in it."""
        for entry in self.quantizers:
            yield from entry.quantizer_callables
        for names in self.passes.values():
            yield from names
        if self.qat is not None:
            yield self.qat
        if isinstance(self.calibration, FactoryCall):
            yield self.calibration.factory


class Quantize(Part):
    """How a method is quantized: by torchao before its export, and by PT2E after it (None if PT2E is not used)."""

    torchao: tuple[TorchaoEntry, ...] = ()
    pt2e: Pt2e | None = None

    @property
    def callables(self) -> Iterator[str]:
        """Every `module:callable` in it."""
        yield from (entry.config for entry in self.torchao if entry.from_code)
        if self.pt2e is not None:
            yield from self.pt2e.callables


class DecoderCache(Part):
    """A key-value cache.

    Attributes:
        max_length: The number of tokens that it holds.
        kind: The modules and operators that hold them; None for transformers' own static cache.
        max_seq_length: The largest number of tokens in one call; None for `max_length`.
    """

    _LEFT_OUT = ("kind", "max_seq_length")

    max_length: int
    kind: str | None = None
    max_seq_length: int | None = None

    @property
    def longest_call(self) -> int:
        """The largest number of tokens in one call."""
        return self.max_length if self.max_seq_length is None else self.max_seq_length


class ConfigFile(Part):
    """A configuration in a declared file.

    Attributes:
        file: The name of the file.
        set: Values that replace those of the file, by key. A dot leads into a nested configuration.
    """

    _LEFT_OUT = ("set",)

    file: str
    set: Options = {}


def _read_config(document: str | Options) -> ConfigFile | Options:
    if isinstance(document, str):
        return ConfigFile(document)
    return ConfigFile.from_json(document) if "file" in document else document


class DenseLayer(Part):
    """A layer that follows the pooling of features.

    Attributes:
        in_features: The size of its input.
        out_features: The size of its output.
        bias: Whether it has a bias.
        activation: The class of `torch.nn` that is applied to its output.
        residual: Whether its input is added to the output.
    """

    in_features: int
    out_features: int
    bias: bool = True
    activation: str = "Identity"
    residual: bool = False


class HuggingFace(Part):
    """A model of Hugging Face's transformers.

    Attributes:
        model_class: The name of the class.
        config: The configuration, or the declared file that contains it.
        cache: The cache of a decoder; None if the model has none.
        max_source_length: The largest number of tokens that an encoder takes; None if it takes no tokens.
        pooling: How the features of tokens become those of the text; None if they stay.
        dense: The layers that follow the pooling.
        normalize: Whether features have the length 1.
        task: What the model is for; None if the manifest does not say it.
        attention: The attention; None for the one that transformers chooses.
        logits: Which tokens' scores a decoder with a cache returns; None for those of all tokens.
        generation_config: The settings for generating text, or the name of the declared file that contains them; None
            if there are none.
    """

    _LEFT_OUT = (
        *("max_source_length", "pooling", "dense", "normalize", "task", "attention", "logits", "generation_config"),
    )

    model_class: str
    config: Annotated[ConfigFile | Options, _read_config] = {}
    cache: DecoderCache | None = None
    max_source_length: int | None = None
    pooling: str | None = None
    dense: tuple[DenseLayer, ...] = ()
    normalize: bool = False
    task: str | None = None
    attention: str | None = None
    logits: str | None = None
    generation_config: str | Options | None = None

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> HuggingFace:
        """The key of `model_class` is `class`."""
        return super().from_json({"model_class" if key == "class" else key: document[key] for key in document})

    def to_json(self) -> dict[str, object]:
        """The key of `model_class` is `class`. A configuration without changed keys is the name of its file."""
        content = super().to_json()
        if isinstance(self.config, ConfigFile) and not self.config.set:
            content["config"] = self.config.file
        return {"class": content.pop("model_class"), **content}

    @property
    def data_names(self) -> dict[str, DocumentPath]:
        """The declared files that hold its settings, each with its place in the manifest."""
        config = self.config.file if isinstance(self.config, ConfigFile) else None
        files = {"config": config, "generation_config": self.generation_config}
        return {name: ("model", "huggingface", key) for key, name in files.items() if isinstance(name, str)}


class ModuleSource(Part):
    """Where the module comes from.

    Attributes:
        factory: The `module:callable` that makes it; None if `huggingface` does, or if every method is exported
            already.
        huggingface: The model of Hugging Face's transformers; None if the module is not one.
        kwargs: Keyword arguments of the factory.
        seed: The seed for random numbers.
        modules: Python modules that the factory imports by computed names.
        dtype: PyTorch's name of the dtype of its floating-point parameters and buffers; None for those that it is made
            with.
    """

    _LEFT_OUT: ClassVar[tuple[str, ...]] = ("dtype",)

    factory: str | None = None
    huggingface: HuggingFace | None = None
    kwargs: Options = {}
    seed: int = 0
    modules: Names = ()
    dtype: str | None = None

    @property
    def plugin(self) -> str | None:
        """The `module_source` of plug-ins that makes the module; None if a factory or nothing does."""
        return None if self.huggingface is None else "huggingface"


class WeightsFile(Part):
    """A checkpoint, and how its tensors become those of the module.

    Attributes:
        file: The declared file, the index of several files, or the folder.
        key: The name of the state dict in a file that holds more than one; None if there is only one.
        rename: For each pattern of names in the checkpoint, the pattern of the names in the module.
        ignore: Patterns for names in the checkpoint that are not read.
        optional: Patterns for names in the module that the checkpoint may lack.
    """

    _LEFT_OUT = ("key", "rename", "ignore", "optional")

    file: str
    key: str | None = None
    rename: dict[str, str] = {}
    ignore: Names = ()
    optional: Names = ()

    @classmethod
    def from_json(cls, document: str | Mapping[str, Any]) -> WeightsFile:
        """Reads a name, or an object with rules."""
        return super().from_json({"file": document} if isinstance(document, str) else document)

    def to_json(self) -> Any:
        """The name of the file, or an object if there are rules."""
        written = super().to_json()
        return written if len(written) > 1 else self.file


Weights = tuple[WeightsFile, ...]


class AdapterFiles(Part):
    """The declared files of a LoRA adapter: PEFT's configuration, and the weights."""

    config: str
    weights: str


class Model(ModuleSource):
    """Where the module comes from, the checkpoints that contain its weights, and its adapters by name."""

    _LEFT_OUT = (*ModuleSource._LEFT_OUT, "adapters")

    weights: Weights = ()
    adapters: dict[str, AdapterFiles] = {}


class RecipeCall(Part):
    """An export recipe with its arguments: one of ExecuTorch's by name, or a `module:callable` that returns one."""

    name: str
    kwargs: Options

    @property
    def callables(self) -> Names:
        """The `module:callable`, if it comes from the declared sources."""
        return (self.name,) if ":" in self.name else ()

    @property
    def backends(self) -> Names:
        """The backends that the recipe lowers to. Empty for a recipe from the declared sources, where they are
        unknown."""
        return recipes.NAMES.get(self.name, ())


class Recipe(RecipeCall):
    """A recipe, and for each of ExecuTorch's configurations the fields that the manifest sets itself."""

    said: dict[str, Names]


class Runner(Part):
    """The contract of a runner, and the constant methods that the manifest sets itself."""

    contract: str
    said: Names


class NamedData(Part):
    """The weights of a tag.

    Attributes:
        parameters: Patterns for their names.
        shard_size: The size of a shard in bytes; None for a single file.
        adapter: Whether they are those of an adapter, with the name of the tag. Then no other tag can have them.
    """

    _LEFT_OUT = ("adapter",)

    parameters: Names
    shard_size: int | None
    adapter: bool = False


class CustomOps(Part):
    """The sources of operators that do not belong to PyTorch: declared shared libraries, and Python modules."""

    libraries: Names = ()
    modules: Names = ()

    @property
    def library_names(self) -> dict[str, DocumentPath]:
        """The declared libraries, each with its place in the manifest."""
        return {name: ("custom_ops", "libraries", index) for index, name in enumerate(self.libraries)}


class LowerPasses(Part):
    """Callables that return passes, for each point of lowering at which ExecuTorch accepts passes."""

    edge: Names = ()
    edge_manager: Names = ()
    executorch: Names = ()


class Passes(LowerPasses):
    """The passes of lowering, and the callables that change a method after its export."""

    aten: Names = ()


class EdgeCompile(Part):
    """Fields of ExecuTorch's `EdgeCompileConfig`. Operators have the form `namespace::name` or
    `namespace::name.overload`."""

    check_ir_validity: bool = True
    skip_dim_order: bool = False
    core_aten_ops_exception_list: Names = ()
    preserve_ops: Names = ()


class Executorch(Part):
    """Fields of ExecuTorch's `ExecutorchBackendConfig`, with its names."""

    to_out_var_pass: dict[str, bool]
    propagate_device_config: dict[str, bool | dict[str, bool]]
    extract_delegate_segments: bool = True
    segment_alignment: int = 128
    constant_tensor_alignment: int | None = None
    delegate_alignment: int | None = None
    sym_shape_eval_pass: str = "constraint_based"
    remove_view_copy: bool = True
    external_mutable_weights: bool = False
    emit_mutable_buffer_names: bool = False
    do_quant_fusion_and_const_prop: bool = False
    run_reinplace_pass: bool = False
    reinplace_extra_ops: Names = ()
    enable_non_cpu_memory_planning: bool = True

    def of_method(self, name: str) -> Executorch:
        """A copy without what is only read for other methods, or for the file of the whole program."""
        devices = {
            key: value.get(name, False) if isinstance(value, dict) else value
            for key, value in self.propagate_device_config.items()
        }
        return self.replace(
            propagate_device_config=devices,
            extract_delegate_segments=True,
            segment_alignment=1,
            constant_tensor_alignment=None,
            delegate_alignment=None,
            external_mutable_weights=False,
        )


class MemoryPlanning(Part):
    """Arguments of ExecuTorch's `MemoryPlanningPass`, with its names."""

    memory_planning_algo: str = "greedy"
    allow_lifetime_and_storage_overlap: bool = False
    alloc_graph_input: bool = True
    alloc_graph_output: bool = True
    alloc_mutable_buffers: bool = True
    alignment: int = 16


class ReportOptions(Part):
    """Whether the report lists the counts of operators, and each blob."""

    operators: bool = True
    blobs: bool = True


class ExportMethod(Part):
    """What the export of a method depends on.

    Attributes:
        program: The declared file with the exported method; None if the method is exported from the module.
        entry: The callable of the module that the method calls.
        strict: Whether the export is strict.
        quantize: How it is quantized; None if it is not.
        example_inputs: The positional inputs.
        example_kwargs: The keyword inputs.
        dynamic_shapes: The dynamic shapes of each positional input.
        dynamic_kwargs_shapes: The dynamic shapes of each keyword input.
        from_recipe: What the recipe decides, some of `recipes.DECIDES`.
        adapter: The adapter that it computes with; None for none.
    """

    _LEFT_OUT = ("adapter",)

    program: str | None
    entry: str
    strict: bool
    quantize: Quantize | None
    example_inputs: tuple[Example, ...]
    example_kwargs: dict[str, Example]
    dynamic_shapes: tuple[Shapes, ...]
    dynamic_kwargs_shapes: dict[str, Shapes]
    from_recipe: Names
    adapter: str | None = None

    @property
    def pt2e(self) -> Pt2e | None:
        """How the manifest quantizes it after its export; None if the manifest does not."""
        return self.quantize.pt2e if self.quantize is not None else None

    @property
    def carries_content(self) -> bool:
        """Whether the exported method contains the content of weights. This is so if the export makes it, as it does
        for quantized weights, or if an exported program brings it. A recipe may quantize too."""
        return self.quantize is not None or self.program is not None or "quantize" in self.from_recipe

    @property
    def defers_quantization(self) -> bool:
        """Whether what quantizes it looks at nothing but one weight at a time, so that the export need not know it."""
        quantize = self.quantize
        if quantize is None or self.program is not None or "quantize" in self.from_recipe or quantize.pt2e is not None:
            return False
        return not any(entry.from_code or entry.keeps for entry in quantize.torchao)

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
        if self.pt2e is not None and isinstance(self.pt2e.calibration, BatchesFile):
            yield self.pt2e.calibration.file, (*path, "quantize", "pt2e", "calibration", "file")
        for example, place in self.leaves(path):
            if isinstance(example, FileExample):
                yield example.file, (*place, "file")

    @property
    def callables(self) -> Iterator[str]:
        """Every `module:callable` in it."""
        yield from callables_of(example for example, _ in self.leaves(()))
        if self.quantize is not None:
            yield from self.quantize.callables


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


class Method(ExportMethod):
    """A whole method: how it is exported, its partitioners, and how its memory is planned."""

    partitioners: tuple[BackendEntry, ...] = ()
    memory_planning: MemoryPlanning = MemoryPlanning()

    @property
    def of_lowering(self) -> LowerMethod:
        """What its lowering depends on."""
        return LowerMethod(self.partitioners, "partitioners" in self.from_recipe)


class Tolerance(Part):
    """How far an element may be from the expected one: atol + rtol * |expected| + of_largest * the largest |expected|
    of the same output."""

    atol: float
    rtol: float
    of_largest: float

    @classmethod
    def of_manifest(cls, given: Mapping[str, float] | None) -> Tolerance | None:
        """A tolerance of a manifest. What is not there is 0."""
        return None if given is None else cls(*(float(given.get(key, 0.0)) for key in cls._FIELDS))


class MethodComparison(Part):
    """How a build compares one method with the exported one.

    Attributes:
        tolerance: The tolerance; None for that of the dtype of each output.
        ranges: The smallest and the largest random number of the first inputs; None for the default.
        leave_out: Why the method is not compared; None if it is.
    """

    tolerance: Tolerance | None
    ranges: tuple[tuple[float, float] | None, ...]
    leave_out: str | None

    @classmethod
    def of_manifest(cls, compare: Compare, method: str) -> MethodComparison:
        """What `checks.compare` says of a method."""
        own = compare.get("methods", {}).get(method, {})
        tolerance = Tolerance.of_manifest(own.get("tolerance", compare.get("tolerance")))
        return cls(tolerance, pairs(own.get("ranges", [])), own.get("leave_out", compare.get("leave_out")))


def pairs(ranges: Ranges) -> tuple[tuple[float, float] | None, ...]:
    """The smallest and the largest number of each range of a manifest."""
    return tuple(None if each is None else (each[0], each[1]) for each in ranges)
