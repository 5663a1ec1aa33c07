"""The section `quantize` of a manifest, as plans have it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from etbuild.errors import DocumentPath
from etbuild.plan import kinds
from etbuild.plan.kinds import Names, Options
from etbuild.plan.part import NULLABLE, PLAN_ONLY, Part, PluginKeys, Says
from etbuild.plan.parts import BackendEntry, FactoryCall, Partitioner

CONFIGS = {"8da4w": 32, "8da8w": None, "int4": 32, "int8": None, "packed": None}
"""How many weights of a row share a scale, by the name of torchao's configuration, if the manifest does not say it.
None for the whole row."""


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
        return super().from_json({"group_size": CONFIGS.get(document["config"]), **document})

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


class CalibrationData(Part, section="Calibration", needs=()):
    """The inputs that a method is calibrated on.

    Attributes:
        file: Name of a declared input with one tensor for each input of the method. The first dimension of each tensor
            counts the batches. For example `calibration.safetensors`.
        keys: The names of these tensors, in the order of the inputs. For example `[image]`.
        factory: A callable in the declared sources that returns the batches: an iterable of tuples or lists of inputs,
            or of the only input. For example `"calibration:batches"`.
        kwargs: Keyword arguments of `factory`. For example `{count: 8}`.
    """

    file: kinds.InputName
    keys: kinds.SomeTexts
    factory: kinds.CallableName
    kwargs: Options


class SampleBatches(Part):
    """Calibration on the samples of the method, each of them a batch."""

    samples: Annotated[Any, PluginKeys("samples")]


class OwnInputs(Part):
    """Calibration on the example inputs."""


def read_calibration(document: Mapping[str, Any]) -> Calibration:
    """Reads what a method is calibrated on from its JSON."""
    if "file" in document:
        return BatchesFile.from_json(document)
    if "samples" in document:
        return SampleBatches.from_json(document)
    return FactoryCall.from_json(document) if "factory" in document else OwnInputs.from_json(document)


Calibration = Annotated[
    FactoryCall | BatchesFile | SampleBatches | OwnInputs,
    read_calibration,
    Says(written=Literal["example_inputs", "samples"] | CalibrationData),
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


Integers = Annotated[Literal["int8", "uint8", "int16"] | None, Says(default=...)]


class Io(Part, definition="io", minProperties=1):
    """The types of a quantized method's inputs and outputs. The index, and the C++ class of `etbuild cpp`, have their
    scales and zero points. For example `{inputs: int8, outputs: int8}`.

    Attributes:
        inputs: The type of the inputs that were floating-point numbers. Without it, the method quantizes its inputs
            itself. For example `int8`.
        outputs: The type of the outputs that were floating-point numbers. For example `int8`.
    """

    _LEFT_OUT = ("inputs", "outputs")

    inputs: Integers = None
    outputs: Integers = None


class Pt2e(Part, definition="pt2e"):
    """PyTorch 2 Export quantization: quantizers select the operators, and calibration or training finds the scales. For
    example `{quantizers: [{backend: xnnpack, options: {per_channel: true}}], calibration: {factory:
    "calibration:batches"}}`.

    Attributes:
        quantizers: Quantizers of backends, by name or with options, in the order in which they select operators. Each
            backend has its own schema for the options. Required unless a `recipe` has quantizers. For example
            `[xnnpack]`, `[{backend: xnnpack, options: {per_channel: true}}]`.
        calibration: The inputs that the method runs on to find the ranges of its activations: `example_inputs`,
            `samples` for those of the method, or batches from a declared file or a factory. Required unless the scales
            come from `qat`, from a `recipe`, or (with the option `dynamic`) are found at run time. For example
            `samples`, `example_inputs`, `{file: calibration.safetensors, keys: [image]}`.
        qat: A callable in the declared sources for quantization-aware training. It receives the prepared
            torch.fx.GraphModule. For example `"training:fit"`.
        passes: Callables in the declared sources that take the method's torch.fx.GraphModule and return one, by the
            point at which they are called. For example `{post_convert: ["passes:fold"]}`.
        io: The `io` of the method.
    """

    _LEFT_OUT = ("io",)

    quantizers: Annotated[tuple[Partitioner, ...], Says(minItems=1, default=...)] = ()
    calibration: Calibration | None = None
    qat: kinds.CallableName | None = None
    passes: QuantizePasses = QuantizePasses()
    io: Annotated[Io | None, PLAN_ONLY] = None

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
    def after_export(self) -> bool:
        """Whether PT2E is used."""
        return self.pt2e is not None

    @property
    def trains(self) -> bool:
        """Whether the method is trained to find the scales."""
        return self.pt2e is not None and self.pt2e.qat is not None

    @property
    def keeps(self) -> bool:
        """Whether layers keep the integers of a packed checkpoint."""
        return any(entry.keeps for entry in self.torchao)

    @property
    def needs_content(self) -> bool:
        """Whether it looks at more than one weight at a time."""
        return self.after_export or any(entry.from_code or entry.keeps for entry in self.torchao)

    @property
    def quantizers(self) -> dict[DocumentPath, BackendEntry]:
        """The quantizers of backends, by their place in the section."""
        entries = self.pt2e.quantizers if self.pt2e is not None else ()
        return {("pt2e", "quantizers", index): entry for index, entry in enumerate(entries)}

    @property
    def data_names(self) -> dict[str, DocumentPath]:
        """The file with batches, with its place in the section."""
        calibration = self.pt2e.calibration if self.pt2e is not None else None
        return {calibration.file: ("pt2e", "calibration", "file")} if isinstance(calibration, BatchesFile) else {}

    @property
    def callables(self) -> Iterator[str]:
        """Every `module:callable` in it."""
        yield from (entry.config for entry in self.torchao if entry.from_code)
        if self.pt2e is not None:
            yield from self.pt2e.callables
