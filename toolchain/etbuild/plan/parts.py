"""The parts of plans, with their types and their form as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from etbuild import backends
from etbuild.backends import recipes
from etbuild.errors import DocumentPath
from etbuild.torchao_configs import TORCHAO_CONFIGS

if TYPE_CHECKING:
    from etbuild.manifest import sections
from etbuild.plan import kinds
from etbuild.plan.kinds import Names, Options
from etbuild.plan.part import NULLABLE, PLAN_ONLY, Part, Says


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
        of_model: What it is: `features`, `encoder_outputs`, `pixel_values`, `embeddings`, `image` or `sound`.
        length: The size of its dimension of tokens, or the length of a sound; None if the configuration says that too.
    """

    _LEFT_OUT = ("length",)

    of_model: Annotated[
        Literal["features", "encoder_outputs", "pixel_values", "embeddings", "image", "sound"],
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


class TorchaoEntry(Part, section="Torchao", definition="torchao"):
    """One of torchao's configurations, and the layers that it applies to. For example `{config: "8da4w", group_size:
    64, modules: ["layers.*"]}`.

    Attributes:
        config: `8da4w` and `8da8w`: weights of 4 or 8 bits, activations quantized to 8 bits at run time. `int4` and
            `int8`: only weights. `packed`: the integers of a packed checkpoint, where the layer can hold them; other
            layers go to later entries. Or a `module:callable` in the declared sources that returns a configuration of
            torchao. For example `"8da4w"`, `"quantization:config"`.
        group_size: The number of weights in a row that share a scale; `null`: the whole row. Default: 32 for 4 bits,
            the whole row for 8. For example `64`, `null`.
        scales: How torchao finds the scales: `affine` from the largest weight, or `hqq_scale_only`, which searches for
            those with the smallest error. By default torchao's choice. For example `hqq_scale_only`.
        fitting: Whether layers whose rows are not a multiple of `group_size` are left to later entries. Otherwise they
            are an error. For example `true`.
        kwargs: Keyword arguments of the callable that `config` names. For example `{bits: 4}`.
        modules: Patterns for the names of the model's layers, as in `named_data`. For example `["layers.*"]`.
        layers: The kinds of layers that are quantized. Embeddings take `int4` and `int8`. For example `[embedding]`.
    """

    _LEFT_OUT = ("scales", "fitting")
    _EITHER = ("group_size", "kwargs")  # JSON has one of them

    config: str
    modules: kinds.Patterns = ("*",)
    layers: Annotated[tuple[Literal["linear", "embedding"], ...], Says(minItems=1, uniqueItems=True)] = ("linear",)
    group_size: Annotated[kinds.LayerSize | None, NULLABLE] = None
    kwargs: Annotated[Options, Says(default=...)] = {}
    scales: Literal["affine", "hqq_scale_only"] | None = None
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
        return super().from_json({"group_size": TORCHAO_CONFIGS.get(document["config"]), **document})

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


Calibration = Annotated[
    FactoryCall | BatchesFile | OwnInputs,
    read_calibration,
    Says(written="WrittenCalibration"),
]


class QuantizePasses(Part):
    """Passes over a method, by the point of its quantization at which they run, in order."""

    pre_prepare: kinds.Callables = ()
    post_prepare: kinds.Callables = ()
    pre_convert: kinds.Callables = ()
    post_convert: kinds.Callables = ()

    def of_hooks(self) -> dict[str, Names]:
        """The callables of each point."""
        return {hook: getattr(self, hook) for hook in self._FIELDS}


QUANTIZE_HOOKS = QuantizePasses._FIELDS


class Pt2e(Part, definition="pt2e"):
    """PyTorch 2 Export quantization: quantizers select the operators, and calibration or training finds the scales. For
    example `{quantizers: [{backend: xnnpack, options: {per_channel: true}}], calibration: {factory:
    "calibration:batches"}}`.

    Attributes:
        quantizers: Quantizers of backends, by name or with options, in the order in which they select operators. Each
            backend has its own schema for the options. Required unless a `recipe` has quantizers. For example
            `[xnnpack]`, `[{backend: xnnpack, options: {per_channel: true}}]`.
        calibration: The inputs that the method runs on to find the ranges of its activations: `example_inputs`, or
            batches from a declared file or a factory. Required unless the scales come from `qat`, from a `recipe`, or
            (with the option `dynamic`) are found at run time. For example `example_inputs`, `{file:
            calibration.safetensors, keys: [image]}`.
        qat: A callable in the declared sources for quantization-aware training. It receives the prepared
            torch.fx.GraphModule. For example `"training:fit"`.
        passes: Callables in the declared sources that take the method's torch.fx.GraphModule and return one, by the
            point at which they are called. For example `{post_convert: ["passes:fold"]}`.
    """

    quantizers: Annotated[tuple[Partitioner, ...], Says(minItems=1, default=...)] = ()
    calibration: Calibration | None = None
    qat: kinds.CallableName | None = None
    passes: QuantizePasses = QuantizePasses()

    @property
    def callables(self) -> Iterator[str]:
        """Every `module:callable` in it."""
        for entry in self.quantizers:
            yield from entry.quantizer_callables
        for names in self.passes.of_hooks().values():
            yield from names
        if self.qat is not None:
            yield self.qat
        if isinstance(self.calibration, FactoryCall):
            yield self.calibration.factory


class Quantize(Part, minProperties=1):
    """How a method is quantized: by torchao before its export, and by PT2E after it (None if PT2E is not used).

    Attributes:
        torchao: Layers whose weights torchao's `quantize_` replaces before the method is exported. If several entries
            match a layer, the first one applies. For example `[{config: "8da4w", modules: ["layers.*"]}]`.
    """

    torchao: Annotated[tuple[TorchaoEntry, ...], Says(minItems=1, default=...)] = ()
    pt2e: Pt2e | None = None

    @property
    def callables(self) -> Iterator[str]:
        """Every `module:callable` in it."""
        yield from (entry.config for entry in self.torchao if entry.from_code)
        if self.pt2e is not None:
            yield from self.pt2e.callables


Quantization = Annotated[Quantize | None, Says("quantize", default=None)]


class DecoderCache(Part, section="Cache"):
    """A key-value cache. A plan leaves out what says the same as if it was not there.

    Attributes:
        max_length: The number of tokens that the cache holds. For example `128`.
        max_seq_length: The largest number of tokens in one call. A runner cuts a longer prompt into several calls, and
            memory is planned for this number. By default `max_length`; for a decoder with an encoder 1, as ExecuTorch's
            runner needs. For example `64`.
        kind: What holds the keys and values. `static`: transformers' cache, for every backend. `custom`: ExecuTorch's
            cache, which its operators update and read in place on CPUs. `ring`: the same, but a layer with a sliding
            window holds only the window and the tokens of one call. `quantized`: 8 bits for each value, with a scale
            for each token and head. For example `custom`.
    """

    _LEFT_OUT = ("kind", "max_seq_length")

    max_length: kinds.Size
    kind: Annotated[Literal["static", "custom", "ring", "quantized"], Says(default="static")] | None = None
    max_seq_length: kinds.Size | None = None

    @property
    def longest_call(self) -> int:
        """The largest number of tokens in one call."""
        return self.max_length if self.max_seq_length is None else self.max_seq_length


class ConfigFile(Part, definition="configuration", needs=(), is_open="the class of the configuration knows the keys"):
    """Keys of the model's configuration class, or `file` and `set`.

    Attributes:
        file: The name of a declared input that holds the configuration. For example `config.json`.
        set: Goes with `file`: values that replace those of the file. A dot in a key leads into a nested configuration.
            For example `{num_hidden_layers: 2, text_config.vocab_size: 256}`.
    """

    _LEFT_OUT = ("set",)

    file: kinds.InputName
    set: Options = {}


def _read_config(document: str | Options) -> ConfigFile | Options:
    if isinstance(document, str):
        return ConfigFile(document)
    return ConfigFile.from_json(document) if "file" in document else document


Config = Annotated[
    ConfigFile | Options,
    _read_config,
    Says(
        written=ConfigFile | kinds.InputName,
        plan={
            "type": ["string", "object"],
            "if": {"type": "object", "required": ["file"]},
            "then": {"$ref": "#/$defs/configFile"},
        },
    ),
]


class DenseLayer(Part, section="Dense"):
    """One layer. For example `{in_features: 768, out_features: 3072, bias: false}`.

    Attributes:
        in_features: The size of its input. For example `768`.
        out_features: The size of its output. For example `3072`.
        bias: Whether it has a bias. For example `false`.
        activation: The class of `torch.nn` that is applied to its output. For example `Tanh`.
        residual: Whether its input is added to the output: through another linear layer if their sizes differ. For
            example `true`.
    """

    in_features: kinds.LayerSize
    out_features: kinds.LayerSize
    bias: bool = True
    activation: kinds.Identifier = "Identity"
    residual: bool = False


class HuggingFace(Part, needs=()):
    """A model of Hugging Face's transformers. In a plan, a configuration without changed keys is the name of its file.

    Attributes:
        task: What the model is for. A task makes `class`, `methods` and inputs optional. These write text, need a
            `cache`, and return the scores that `logits` says, by default `last`: `text-generation`: a decoder. Without
            `methods`, there is one method `forward` of dynamic length; a method without inputs takes up to
            `cache.max_seq_length` tokens, or one if it is called `decode`. `seq2seq`: an encoder and a decoder of text,
            such as T5, with the methods `encoder` and `text_decoder`. `speech-to-text`: the same with an encoder of
            speech, such as Whisper. `image-text-to-text`: images and text, such as LLaVA, with the methods
            `vision_encoder`, `token_embedding` and `text_decoder`. The others have one method `forward`, and no cache.
            `feature-extraction`: takes tokens and returns their features, or those of the text that `pooling` says.
            `text-classification`, `token-classification` and `image-classification`: take tokens or an image, and
            return the scores of labels before the softmax; the constant method `get_labels` has the names of the
            labels, as a JSON array. `object-detection`: takes an image, and returns such scores of each box, and the
            boxes. `automatic-speech-recognition`: takes a sound, and returns the scores of each frame for a CTC such as
            that of wav2vec 2.0; for Whisper and Moonshine there is `speech-to-text`. For example `text-generation`.
        model_class: The class of the model. Required without a `task`, which chooses an Auto class. An Auto class
            selects the model by the configuration's `model_type`. For example `LlamaForCausalLM`,
            `AutoModelForCausalLM`.
        config: The configuration: keys, the name of a file, or a file with `set`. Keys are those of the model's
            configuration class. A file is a declared input, such as the config.json that `save_pretrained` writes.
            `{file: config.json, set: {KEY: VALUE}}` changes single keys of a file. For example `{hidden_size: 64,
            num_hidden_layers: 2}`, `config.json`, `{file: config.json, set: {num_hidden_layers: 2}}`.
        generation_config: Settings for generating text, which a `runner` reads the ids of tokens from: keys of
            transformers' GenerationConfig, or the name of a declared input that holds them, such as the
            generation_config.json that `save_pretrained` writes. For example `{eos_token_id: [1, 2]}`,
            `generation_config.json`.
        attention: How attention is computed: `eager` or `sdpa`, as in transformers, or `custom_sdpa` with ExecuTorch's
            operators for CPUs. By default, a cache decides: `custom_sdpa` for the kinds `custom`, `ring` and
            `quantized`, and otherwise what transformers chooses. For example `custom_sdpa`.
        logits: Which scores a decoder with a cache returns: those of `all` tokens, [1, seq, vocabulary], or of the
            `last` one, [1, vocabulary]. By default `all`, and `last` with a `task`. For example `last`.
        max_source_length: The largest number of tokens that a task with an encoder of text takes in one call, such as
            `seq2seq` and `feature-extraction`. Memory is planned for this number. For an encoder of sound whose
            configuration does not say it, the length of the sound in each call: samples, or frames of features. For
            example `512`.
        pooling: What `task: feature-extraction` returns: the `mean` of the features of all tokens, those of the first
            token (`cls`) or of the `last` one, [1, hidden]; with `none` those of every token, [1, seq, hidden]. For
            example `mean`.
        dense: Layers of `task: feature-extraction` that follow the pooling, each on the output of the one before: the
            `Dense` modules of sentence-transformers. Their parameters are called `dense.0.linear.weight` and so on. For
            example `[{in_features: 768, out_features: 256, activation: Tanh}]`.
        normalize: Whether `task: feature-extraction` divides features by their length (L2), so that the product of two
            is their cosine. For example `true`.
        cache: Gives a decoder a key-value cache in mutable buffers. `forward` then takes (input_ids, cache_position),
            int64 [1, seq] and int64 [1]: the tokens, and the position of the first token. It returns the scores that
            `logits` says. Without a cache, a decoder reads all tokens in each call. For example `{max_length: 128}`,
            `{max_length: 2048, max_seq_length: 128, kind: custom}`.
    """

    _KEYS = {"model_class": "class"}
    _LEFT_OUT = (
        *("max_source_length", "pooling", "dense", "normalize", "task", "attention", "logits", "generation_config"),
    )

    model_class: kinds.Identifier
    config: Config = {}
    cache: DecoderCache | None = None
    max_source_length: kinds.Size | None = None
    pooling: Annotated[Literal["mean", "cls", "last", "none"], Says(default="none")] | None = None
    dense: tuple[DenseLayer, ...] = ()
    normalize: bool = False
    task: (
        Annotated[
            Literal[
                "text-generation",
                "seq2seq",
                "speech-to-text",
                "image-text-to-text",
                "feature-extraction",
                "text-classification",
                "token-classification",
                "image-classification",
                "object-detection",
                "automatic-speech-recognition",
            ],
            Says(group="task"),
        ]
        | None
    ) = None
    attention: Literal["eager", "sdpa", "custom_sdpa"] | None = None
    logits: Literal["all", "last"] | None = None
    generation_config: Options | kinds.InputName | None = None

    def to_json(self) -> dict[str, object]:
        """A configuration without changed keys is the name of its file."""
        content: dict[str, object] = super().to_json()
        if isinstance(self.config, ConfigFile) and not self.config.set:
            content["config"] = self.config.file
        return content

    @property
    def data_names(self) -> dict[str, DocumentPath]:
        """The declared files that hold its settings, each with its place in the manifest."""
        config = self.config.file if isinstance(self.config, ConfigFile) else None
        files = {"config": config, "generation_config": self.generation_config}
        return {name: ("model", "huggingface", key) for key, name in files.items() if isinstance(name, str)}


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
            and a checkpoint of another dtype is an error. For example `float32`.
        modules: Modules in the declared sources that the model imports by computed names. Modules in import statements
            need not be listed. For example `[layers.rotary]`.
    """

    _LEFT_OUT: ClassVar[tuple[str, ...]] = ("dtype",)

    factory: kinds.CallableName | None = None
    huggingface: HuggingFace | None = None
    kwargs: Options = {}
    seed: kinds.Count = 0
    modules: kinds.ModuleNames = ()
    dtype: Annotated[Literal["float32", "float16", "bfloat16"], Says(type="string")] | None = None

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


class AdapterFiles(Part, section="Adapter", definition="adapter", also=kinds.InputName):
    """The files of a LoRA adapter. For example `{config: math/adapter_config.json, weights: math/adapter_model.bin}`.

    Attributes:
        config: The name of the declared input with PEFT's configuration. For example `math/adapter_config.json`.
        weights: The name of the declared input with the weights: a .safetensors file, or a .pt, .pth, .bin or .ckpt
            file of torch.save. Only the last step of a build reads them. For example `math/adapter_model.safetensors`.
    """

    config: kinds.InputName
    weights: kinds.InputName


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
    adapters: dict[kinds.Identifier, Annotated[AdapterFiles, Says(text=_FOLDER)]] = {}


class RecipeCall(Part, section="Recipe", short="name", also=str):
    """An export recipe with its arguments: one of ExecuTorch's by name, or a `module:callable` that returns one.

    Attributes:
        name: Name of the recipe, or a `module:callable`. For example `xnnpack_fp32`.
        kwargs: Keyword arguments of the recipe. For example `{group_size: 64}`.
    """

    name: str
    kwargs: Options = {}

    @property
    def callables(self) -> Names:
        """The `module:callable`, if it comes from the declared sources."""
        return (self.name,) if ":" in self.name else ()

    @property
    def backends(self) -> Names:
        """The backends that the recipe lowers to. Empty for a recipe from the declared sources, where they are
        unknown."""
        return recipes.NAMES.get(self.name, ())


_SAID = {
    "type": "object",
    "required": ["edge_compile", "executorch"],
    "additionalProperties": {"type": "array", "items": {"type": "string"}},
}


class Recipe(RecipeCall):
    """A recipe, and for each of ExecuTorch's configurations the fields that the manifest sets itself."""

    said: Annotated[dict[str, Names], Says(plan=_SAID)] = {}


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
        from_recipe: What the recipe decides, some of `recipes.DECIDES`.
    """

    _LEFT_OUT = ("adapter",)

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


class Method(ExportMethod, definition="method", needs=()):
    """One method of the program. For example `{example_inputs: [{shape: [1, 16]}]}`.

    Attributes:
        memory_planning: Overrides `executorch.memory_planning` for this method.
    """

    partitioners: Annotated[Partitioners, Says(default=...)] = ()
    memory_planning: MemoryPlanning = MemoryPlanning()

    @property
    def of_lowering(self) -> LowerMethod:
        """What its lowering depends on."""
        return LowerMethod(self.partitioners, "partitioners" in self.from_recipe)


class Tolerance(Part, definition="tolerance", needs=(), minProperties=1):
    """How far an element may be from what the model computes in eager PyTorch (for a quantized method, from its
    quantized graph): atol + rtol * |expected| + of_largest * the largest |expected| of the same output. A key that is
    not there is 0. Without `tolerance`: float32 {rtol: 0.001, of_largest: 0.0001}, smaller floats {rtol: 0.01,
    of_largest: 0.01}, quantized methods {of_largest: 0.05}, integers and booleans exact. For example `{rtol: 0.001,
    atol: 0.0001}`.

    Attributes:
        atol: Absolute tolerance. For example `0.0001`.
        rtol: Tolerance relative to the element. For example `0.001`.
        of_largest: Tolerance relative to the largest element of the output. For example `0.0001`.
    """

    atol: kinds.Positive
    rtol: kinds.Positive
    of_largest: kinds.Positive

    @classmethod
    def of_manifest(cls, given: sections.Tolerance | None) -> Tolerance | None:
        """A tolerance of a manifest. What is not there is 0."""
        if given is None:
            return None
        return cls(float(given.get("atol", 0)), float(given.get("rtol", 0)), float(given.get("of_largest", 0)))


class CompareMethod(Part, minProperties=1):
    """The settings of one method. For example `{ranges: [[0, 255]]}`."""

    tolerance: Tolerance | None = None
    ranges: Annotated[kinds.Ranges, Says(default=...)] = ()
    leave_out: kinds.LeaveOut | None = None


class Compare(Part, minProperties=1):
    """How a build compares what the program computes with the exported methods.

    Attributes:
        work: How many numbers the operators of a method may read and write in the calls after the first one. Calls that
            would need more are left out, or made in smaller sizes. 0: only one call. For example `2000000000`.
        methods: Settings for single methods, by name. For example `{decode: {tolerance: {rtol: 0.01}}}`.
    """

    tolerance: Tolerance | None = None
    leave_out: kinds.LeaveOut | None = None
    work: Annotated[int, Says(minimum=0)] = 200_000_000
    methods: Annotated[dict[str, CompareMethod], Says(minProperties=1, default=...)] = {}


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
    def of_manifest(cls, compare: sections.Compare, method: str) -> MethodComparison:
        """What `checks.compare` says of a method."""
        own = compare.get("methods", {}).get(method, {})
        tolerance = Tolerance.of_manifest(own.get("tolerance", compare.get("tolerance")))
        return cls(tolerance, pairs(own.get("ranges", [])), own.get("leave_out", compare.get("leave_out")))


def pairs(ranges: sections.Ranges) -> tuple[tuple[float, float] | None, ...]:
    """The smallest and the largest number of each range of a manifest."""
    return tuple(None if each is None else (each[0], each[1]) for each in ranges)
