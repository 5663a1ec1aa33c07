"""The section `model.huggingface` of a manifest, as plans have it."""

from __future__ import annotations

from typing import Annotated, Literal

from etbuild.errors import DocumentPath
from etbuild.exception_text import hints
from etbuild.plan import kinds
from etbuild.plan.kinds import Options
from etbuild.plan.part import Part, Says
from etbuild.plan.parts import ModuleSource
from etplugins.transformers import refused_lines

CUSTOM_SDPA = "custom_sdpa"
HIDDEN = -255.0
"""What the mask of an external cache adds to the score of a hidden token. Quantizers need a small range, and Qualcomm's
examples have the same number: `masking_utils.py`."""
CUSTOM_KINDS = ("custom", "ring", "quantized")
"""The caches that hold keys and values as `llama::custom_sdpa` takes them."""


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
            for each token and head. `external`: the caller; keys and values are inputs and outputs of static shapes.
            For example `custom`.
    """

    _LEFT_OUT = ("kind", "max_seq_length")

    max_length: kinds.Size
    kind: Annotated[Literal["static", "custom", "ring", "quantized", "external"], Says(default="static")] | None = None
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
            `vision_encoder`, `token_embedding` and `text_decoder`. `image-to-text`: as `speech-to-text`, with an image,
            such as BLIP. Several methods and no cache: `zero-shot-image-classification` and
            `zero-shot-object-detection` (`image_encoder`, `text_encoder`, `scores`), `mask-generation`
            (`image_encoder`, `mask_decoder`), `audio-codec` (`encoder`, `decoder`) and `text-to-speech`
            (`text_encoder`, `speech_decoder`). The others have one method `forward`, and no cache.
            `feature-extraction`: takes tokens and returns their features, or those of the text that `pooling` says.
            `text-classification`, `token-classification`, `image-classification` and `audio-classification`: take
            tokens, an image or a sound, and return the scores of labels before the softmax; the constant method
            `get_labels` has the names of the labels, as a JSON array. `semantic-segmentation`: takes an image, and
            returns such scores of each place. `video-classification`: takes the images of a video.
            `universal-segmentation`: returns labels and masks. `question-answering`: takes tokens, and returns scores
            of where an answer begins and ends. `text-ranking`: takes two texts, and returns how well they fit.
            `multiple-choice`: takes a text for each choice. `image-feature-extraction`: `feature-extraction` for
            images. `keypoint-detection`: returns a map for each point. `time-series-prediction`: takes past values, and
            returns the next ones. `object-detection`: takes an image, and returns such scores of each box,
            and the boxes. `depth-estimation`: takes an image, and returns the depth of each place. `fill-mask`: takes
            tokens, and returns the scores of all words for each of them. `automatic-speech-recognition`: takes a sound,
            and returns the scores of each frame for a CTC such as that of wav2vec 2.0; for Whisper and Moonshine there
            is `speech-to-text`. For example `text-generation`.
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
            token (`cls`) or of the `last` one, [1, hidden]; with `none` those of every token, [1, seq, hidden]. The
            same for `image-feature-extraction`; `model` is the vector that the class makes. For example `mean`.
        dense: Layers of `task: feature-extraction` that follow the pooling, each on the output of the one before: the
            `Dense` modules of sentence-transformers. Their parameters are called `dense.0.linear.weight` and so on. For
            example `[{in_features: 768, out_features: 256, activation: Tanh}]`.
        normalize: Whether `task: feature-extraction` divides features by their length (L2), so that the product of two
            is their cosine. For example `true`.
        cache: Gives a decoder a key-value cache in mutable buffers. `forward` then takes (input_ids, cache_position),
            int64 [1, seq] and int64 [1]: the tokens, and the position of the first token. It returns the scores that
            `logits` says. Without a cache, a decoder reads all tokens in each call. For example `{max_length: 128}`,
            `{max_length: 2048, max_seq_length: 128, kind: custom}`.
        draft_layers: How many layers, from the first on, a method `draft` of `task: text-generation` runs before the
            final norm and the head: it drafts what `verify` confirms. For example `8`.
    """

    _KEYS = {"model_class": "class"}
    _LEFT_OUT = (
        *("max_source_length", "pooling", "dense", "normalize", "task", "attention", "logits", "generation_config"),
        "draft_layers",
    )

    model_class: kinds.Identifier
    config: Config = {}
    cache: DecoderCache | None = None
    max_source_length: kinds.Size | None = None
    pooling: Annotated[Literal["mean", "cls", "last", "model", "none"], Says(default="none")] | None = None
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
                "audio-classification",
                "fill-mask",
                "semantic-segmentation",
                "depth-estimation",
                "image-to-text",
                "image-feature-extraction",
                "text-ranking",
                "question-answering",
                "multiple-choice",
                "zero-shot-image-classification",
                "zero-shot-object-detection",
                "keypoint-detection",
                "mask-generation",
                "time-series-prediction",
                "audio-codec",
                "text-to-speech",
                "video-classification",
                "universal-segmentation",
            ],
            Says(group="task"),
        ]
        | None
    ) = None
    attention: Literal["eager", "sdpa", "custom_sdpa"] | None = None
    logits: Literal["all", "last"] | None = None
    generation_config: Options | kinds.InputName | None = None
    draft_layers: kinds.Size | None = None

    @property
    def has_external_cache(self) -> bool:
        """Whether the caller of a method holds the cache."""
        return self.cache is not None and self.cache.kind == "external"

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

    def export_hint(self, error: BaseException) -> str | None:
        """What to do if torch.export refuses the code of the model, which users cannot change."""
        advice = "write a factory" if self.cache is None else "leave out `cache`, or write a factory"
        said = f"`{self.model_class}` cannot be exported as it is with this configuration: {advice}"
        return hints(*refused_lines.about(error), said)

    @property
    def shapes_hint(self) -> str | None:
        """What to do if torch.export refuses shapes that the task may have written; None without a task."""
        if self.task is None:
            return None
        explanation = f"if `task` has written these shapes, `{self.model_class}` does not take calls of any length: "
        return f"{explanation}leave out `cache` and `task`, or write a factory"


def settings_of(source: ModuleSource) -> HuggingFace | None:
    """The settings of a model of transformers; None for a module of another source."""
    settings = source.huggingface
    assert settings is None or isinstance(settings, HuggingFace)
    return settings
