"""The values that a task writes into the manifest of a model: the class of the model, and methods with their inputs.

The methods have the names that ExecuTorch's runners call; without a runner, there is one method `forward`. A plug-in
may provide another `task`: a `Task`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from etbuild import plugins
from etbuild.manifest.sections import ExampleInput, Method, Shapes
from etplugins.transformers.sections import HuggingFace

_CHOICES = 4
_MOST_TEXTS, _MOST_POINTS = 1024, 16
LEAST_SPOKEN, _FRAMES_OF_A_TOKEN = 8, 8
"""The smallest number of tokens that are spoken, and a number of frames that a token takes at most on the average."""
_POSITION: ExampleInput = {"shape": [1], "dtype": "int64", "fill": "zeros"}

Inputs = Callable[[str, str, HuggingFace], Method]


@dataclass(frozen=True)
class Task:
    """What a model is for.

    Attributes:
        model_class: The class of the model, unless the manifest says another.
        runner: The runner for its programs; None if ExecuTorch has none.
        entries: The entry of each method that the task writes, by the name of the method.
        inputs: Makes the inputs of an entry and their dynamic shapes, from the name of the method, the entry and
            `model.huggingface`.
        has_encoder: Whether the model is an encoder and a decoder.
        takes: What the first method takes: `tokens`, at most as many as `max_source_length` says, which the manifest
            then must have; an `image`; a time `series`; or a `sound`, whose length `max_source_length` may say. Empty
            for a task with another input.
        has_labels: Whether the scores are those of labels, which the configuration has. The program then has
            `get_labels`; one that takes a sound and has none has `get_blank_id`, if the configuration says it.
        outputs: The outputs of transformers' model that `forward` returns, by name. Where a name has several with `or`
            between them, the first that the class has is returned. Empty for a task with methods of its own.
        parts: Which parts of a model become methods that keep no state: `towers`, `boxes`, `codec`,
            `masks` or `speech`.
    """

    model_class: str
    runner: str | None
    entries: dict[str, str]
    inputs: Inputs
    has_encoder: bool = False
    takes: str = ""
    has_labels: bool = False
    outputs: tuple[str, ...] = ()
    parts: str = ""

    @property
    def needs_cache(self) -> bool:
        """Whether the model writes text."""
        return not self.outputs and not self.parts


def of(huggingface: HuggingFace) -> Task | None:
    """The task that `model.huggingface` names; None if it names none."""
    return TASKS[huggingface["task"]] if "task" in huggingface else None


def completed(methods: dict[str, Method] | None, task: Task, huggingface: HuggingFace) -> dict[str, Method]:
    """The methods of a manifest, with the values of the task.

    Args:
        methods: The methods of the manifest; those of the task if there are none.
        task: The task.
        huggingface: `model.huggingface`.
    """
    methods = methods or {name: {} for name in first_methods(task, huggingface)}
    return {name: _completed(name, method, task, huggingface) for name, method in methods.items()}


def has_external_cache(huggingface: HuggingFace) -> bool:
    """Whether the caller of a method holds the cache."""
    return huggingface.get("cache", {}).get("kind") == "external"


def first_methods(task: Task, huggingface: HuggingFace) -> Iterator[str]:
    """The methods of a manifest that has none. A call of a fixed length needs a method for the tokens that are left."""
    yield from (name for name, entry in task.entries.items() if entry not in (VERIFY, DRAFT))
    if VERIFY in task.entries and has_external_cache(huggingface) and longest_call(huggingface) != 1:
        yield "decode"


def _completed(name: str, method: Method, task: Task, huggingface: HuggingFace) -> Method:
    """The method with its entry, and with the inputs of the entry if it has none of its own."""
    entry = method.get("entry", task.entries.get(name, "forward"))
    if "program" in method or entry not in task.entries.values():
        return method
    has_inputs = {"example_inputs", "example_kwargs"} & method.keys()
    return {"entry": entry, **({} if has_inputs else task.inputs(name, entry, huggingface)), **method}


def at(value: Any, place: Sequence[int | str]) -> Any:
    """The part of nested lists and mappings at a place; None if there is none."""
    for key in place:
        try:
            value = value[key]
        except (TypeError, KeyError, IndexError):
            return None
    return value


def longest_call(huggingface: HuggingFace) -> int | None:
    """The largest number of tokens in one call of a decoder; None if the manifest does not say it."""
    cache = huggingface.get("cache", {})
    return cache.get("max_seq_length", cache.get("max_length"))


def _tokens(dim: str, longest: int | None, example: int) -> tuple[ExampleInput, list[Shapes] | None]:
    """An input with tokens, int64 [1, seq], and its dynamic shape; None if the tokens have only one length."""
    longest = longest or 1
    shapes = [None, {"dim": dim, "min": 1, "max": longest}] if longest > 1 else None
    return {**_POSITION, "shape": [1, min(longest, example)]}, shapes


def _of_decoder(name: str, entry: str, huggingface: HuggingFace) -> Method:
    """`decode` and a draft take one token in each call. Each other method takes any number of tokens up to the longest
    call, or always as many if its caller holds the cache."""
    if has_external_cache(huggingface):
        is_one = name.partition("_")[0] == "decode" or entry == DRAFT  # also `decode_fr` of an adapter
        length = 1 if is_one else longest_call(huggingface) or 1
        tokens: ExampleInput = {**_POSITION, "shape": [1, length]}
        caches = "draft_caches" if entry == DRAFT else "caches"
        return {"example_inputs": [tokens, {**tokens, "fill": "arange"}, {"of_model": caches, "length": length}]}
    tokens, shapes = _tokens("seq", 1 if name == "decode" or entry == DRAFT else longest_call(huggingface), 8)
    inputs: Method = {"example_inputs": [tokens, _POSITION]}
    return inputs if shapes is None else {**inputs, "dynamic_shapes": [shapes, None]}


def _of_seq2seq(_name: str, entry: str, huggingface: HuggingFace) -> Method:
    source, shapes = _tokens("source", huggingface.get("max_source_length"), 16)
    if entry == "encode":
        return {"example_inputs": [source], "dynamic_shapes": [shapes]}
    states: ExampleInput = {"of_model": "encoder_outputs", "length": source["shape"][1]}
    return _of_text_decoder(states, None if shapes is None else [*shapes, None], huggingface)


def of_text(_name: str, _entry: str, huggingface: HuggingFace) -> Method:
    """All tokens of a text, in one call."""
    tokens, shapes = _tokens("seq", huggingface.get("max_source_length"), 16)
    return {"example_inputs": [tokens], "dynamic_shapes": [shapes]}


def _of_choices(_name: str, _entry: str, huggingface: HuggingFace) -> Method:
    """All tokens of four texts, one for each choice. The number of choices is fixed."""
    tokens, shapes = _tokens("seq", huggingface.get("max_source_length"), 16)
    tokens = {**tokens, "shape": [1, _CHOICES, tokens["shape"][1]]}
    return {"example_inputs": [tokens], "dynamic_shapes": [None if shapes is None else [None, *shapes]]}


def _of_series(_name: str, _entry: str, _huggingface: HuggingFace) -> Method:
    """The past values of a time series, in the length of the configuration."""
    return {"example_inputs": [{"of_model": "series"}]}


def _of_towers(_name: str, entry: str, huggingface: HuggingFace) -> Method:
    """One method takes an image, and one a text. The third compares an image with any number of texts."""
    if entry == "encode_image":
        return {"example_inputs": [{"of_model": "image"}]}
    if entry == "encode_text":
        return of_text(_name, entry, huggingface)
    texts: ExampleInput = {"of_model": "embeddings", "length": 4}
    shapes: list[Shapes] = [None, [{"dim": "texts", "min": 1, "max": _MOST_TEXTS}, None]]
    return {"example_inputs": [{"of_model": "embeddings", "length": 1}, texts], "dynamic_shapes": shapes}


def _of_boxes(name: str, entry: str, huggingface: HuggingFace) -> Method:
    """As `_of_towers`, but the third method compares all boxes of an image with any number of texts."""
    method = _of_towers(name, entry, huggingface)
    if entry != "score":
        return method
    return {**method, "example_inputs": [{"of_model": "encoder_outputs"}, *method["example_inputs"][1:]]}


def _of_codec(_name: str, entry: str, huggingface: HuggingFace) -> Method:
    """One method takes a sound of one length, and the other one its codes."""
    return {"example_inputs": [_sound("sound" if entry == "encode" else "encoder_outputs", huggingface)]}


def _of_spoken_text(_name: str, entry: str, huggingface: HuggingFace) -> Method:
    """One method takes tokens and random numbers. The other one takes what it returns, repeated for each frame."""
    longest = max(huggingface.get("max_source_length", 0), LEAST_SPOKEN + 1)  # the check refuses less
    if entry == "encode":
        count = min(longest, 16)
        dim: Shapes = {"dim": "seq", "min": LEAST_SPOKEN, "max": longest}
        tokens: ExampleInput = {"shape": [1, count], "dtype": "int64", "fill": "ones"}
        return {
            "example_inputs": [tokens, {"shape": [1, 2, count]}],
            "dynamic_shapes": [[None, dim], [None, None, dim]],
        }
    frames: Shapes = {"dim": "frames", "min": 2, "max": longest * _FRAMES_OF_A_TOKEN}
    rows: ExampleInput = {"of_model": "encoder_outputs", "length": 32}
    return {"example_inputs": [rows] * 3, "dynamic_shapes": [[None, frames, None]] * 3}


def _of_masks(_name: str, entry: str, _huggingface: HuggingFace) -> Method:
    """One method takes an image. The other one takes what it returns, and points with their kinds."""
    if entry == "encode_image":
        return {"example_inputs": [{"of_model": "image"}]}
    dim: Shapes = {"dim": "points", "min": 1, "max": _MOST_POINTS}
    points: ExampleInput = {"shape": [1, 1, 2, 2]}
    kinds: ExampleInput = {"shape": [1, 1, 2], "dtype": "int64", "fill": "ones"}
    shapes: list[Shapes] = [None, [None, None, dim, None], [None, None, dim]]
    return {"example_inputs": [{"of_model": "encoder_outputs"}, points, kinds], "dynamic_shapes": shapes}


def _of_captions(_name: str, entry: str, huggingface: HuggingFace) -> Method:
    if entry == "encode":
        return {"example_inputs": [{"of_model": "features"}]}
    return _of_text_decoder({"of_model": "encoder_outputs"}, None, huggingface)


def of_image(_name: str, _entry: str, _huggingface: HuggingFace) -> Method:
    """An image in the size of the configuration."""
    return {"example_inputs": [{"of_model": "image"}]}


def _of_speech(_name: str, entry: str, huggingface: HuggingFace) -> Method:
    if entry == "encode":
        return {"example_inputs": [_sound("features", huggingface)]}
    return _of_text_decoder(_sound("encoder_outputs", huggingface), None, huggingface)


def of_sound(_name: str, _entry: str, huggingface: HuggingFace) -> Method:
    """A whole sound."""
    return {"example_inputs": [_sound("sound", huggingface)]}


def _sound(of_model: str, huggingface: HuggingFace) -> ExampleInput:
    """An input that follows from a whole sound, in the length of the manifest, or else of the configuration."""
    length = huggingface.get("max_source_length")
    return {"of_model": of_model} if length is None else {"of_model": of_model, "length": length}


def _of_text_decoder(states: ExampleInput, shapes: Shapes, huggingface: HuggingFace) -> Method:
    """Takes one token in each call, as from ExecuTorch's runner. `max_seq_length` allows more."""
    tokens, of_tokens = _tokens("seq", huggingface.get("cache", {}).get("max_seq_length"), 8)
    return {"example_inputs": [tokens, states, _POSITION], "dynamic_shapes": [of_tokens, shapes, None]}


def _of_image_text(_name: str, entry: str, huggingface: HuggingFace) -> Method:
    """One method takes an image. The others take any number of tokens or embeddings up to the longest call."""
    tokens, shapes = _tokens("seq", longest_call(huggingface), 8)
    if entry == "encode_image":
        return {"example_inputs": [{"of_model": "pixel_values"}]}
    if entry == "embed":
        return {"example_inputs": [tokens], "dynamic_shapes": [shapes]}
    embeddings: ExampleInput = {"of_model": "embeddings", "length": tokens["shape"][1]}
    of_embeddings = None if shapes is None else [*shapes, None]
    return {"example_inputs": [embeddings, _POSITION], "dynamic_shapes": [of_embeddings, None]}


VERIFY, DRAFT = "verify", "draft"
_ENCODER_DECODER = {"encoder": "encode", "text_decoder": "decode"}
ONE_CALL = {"forward": "forward"}
"""The entries of a task that takes all of its input in one call."""


def _of_labels(model_class: str, inputs: Inputs, takes: str, outputs: tuple[str, ...] = ("logits",)) -> Task:
    """Makes a task that scores labels."""
    return Task(model_class, None, ONE_CALL, inputs, takes=takes, has_labels=True, outputs=outputs)


_OWN = {
    "text-generation": Task(
        "AutoModelForCausalLM", "executorch-llm/v1", {**ONE_CALL, VERIFY: VERIFY, DRAFT: DRAFT}, _of_decoder
    ),
    "seq2seq": Task(
        "AutoModelForSeq2SeqLM",
        "executorch-asr/v1",
        _ENCODER_DECODER,
        _of_seq2seq,
        has_encoder=True,
        takes="tokens",
    ),
    "speech-to-text": Task(
        "AutoModelForSpeechSeq2Seq",
        "executorch-asr/v1",
        _ENCODER_DECODER,
        _of_speech,
        has_encoder=True,
        takes="sound",
    ),
    "image-text-to-text": Task(
        "AutoModelForImageTextToText",
        "executorch-multimodal/v1",
        {"vision_encoder": "encode_image", "token_embedding": "embed", "text_decoder": "decode"},
        _of_image_text,
    ),
    "feature-extraction": Task("AutoModel", None, ONE_CALL, of_text, takes="tokens", outputs=("last_hidden_state",)),
    "text-classification": _of_labels("AutoModelForSequenceClassification", of_text, "tokens"),
    "token-classification": _of_labels("AutoModelForTokenClassification", of_text, "tokens"),
    "image-classification": _of_labels("AutoModelForImageClassification", of_image, "image"),
    "automatic-speech-recognition": Task(
        "AutoModelForCTC", None, ONE_CALL, of_sound, takes="sound", outputs=("logits",)
    ),
    "audio-classification": _of_labels("AutoModelForAudioClassification", of_sound, "sound"),
    "image-to-text": Task(
        "AutoModelForImageTextToText",
        "executorch-asr/v1",
        _ENCODER_DECODER,
        _of_captions,
        has_encoder=True,
        takes="image",
    ),
    "image-feature-extraction": Task(
        "AutoModel", None, ONE_CALL, of_image, takes="image", outputs=("last_hidden_state",)
    ),
    "text-ranking": Task(
        "AutoModelForSequenceClassification", None, ONE_CALL, of_text, takes="tokens", outputs=("logits",)
    ),
    "question-answering": Task(
        "AutoModelForQuestionAnswering", None, ONE_CALL, of_text, takes="tokens", outputs=("start_logits", "end_logits")
    ),
    "multiple-choice": Task(
        "AutoModelForMultipleChoice", None, ONE_CALL, _of_choices, takes="tokens", outputs=("logits",)
    ),
    "zero-shot-image-classification": Task(
        "AutoModelForZeroShotImageClassification",
        None,
        {"image_encoder": "encode_image", "text_encoder": "encode_text", "scores": "score"},
        _of_towers,
        takes="tokens",
        parts="towers",
    ),
    "zero-shot-object-detection": Task(
        "AutoModelForZeroShotObjectDetection",
        None,
        {"image_encoder": "encode_image", "text_encoder": "encode_text", "scores": "score"},
        _of_boxes,
        takes="tokens",
        parts="boxes",
    ),
    "keypoint-detection": Task(
        "AutoModelForPoseEstimation", None, ONE_CALL, of_image, takes="image", outputs=("heatmaps",)
    ),
    "mask-generation": Task(
        "AutoModelForMaskGeneration",
        None,
        {"image_encoder": "encode_image", "mask_decoder": "decode_masks"},
        _of_masks,
        takes="image",
        parts="masks",
    ),
    "time-series-prediction": Task(
        "AutoModelForTimeSeriesPrediction",
        None,
        ONE_CALL,
        _of_series,
        takes="series",
        outputs=("prediction_outputs or mean_predictions",),
    ),
    "audio-codec": Task(
        "AutoModel",
        None,
        {"encoder": "encode", "decoder": "decode"},
        _of_codec,
        takes="sound",
        parts="codec",
    ),
    "text-to-speech": Task(
        "AutoModelForTextToWaveform",
        None,
        {"text_encoder": "encode", "speech_decoder": "speak"},
        _of_spoken_text,
        takes="tokens",
        parts="speech",
    ),
    "fill-mask": Task("AutoModelForMaskedLM", None, ONE_CALL, of_text, takes="tokens", outputs=("logits",)),
    "semantic-segmentation": _of_labels("AutoModelForSemanticSegmentation", of_image, "image"),
    "depth-estimation": Task(
        "AutoModelForDepthEstimation", None, ONE_CALL, of_image, takes="image", outputs=("predicted_depth",)
    ),
    "video-classification": _of_labels("AutoModelForVideoClassification", of_image, "image"),
    "universal-segmentation": _of_labels(
        "AutoModelForUniversalSegmentation", of_image, "image", ("class_queries_logits", "masks_queries_logits")
    ),
    "object-detection": _of_labels("AutoModelForObjectDetection", of_image, "image", ("logits", "pred_boxes")),
}


class _Tasks(Mapping[str, Task]):
    """The tasks by name: those above, and those that plug-ins provide."""

    def __getitem__(self, name: str) -> Task:
        if name in _OWN:
            return _OWN[name]
        task: Task = plugins.load("task", name, ("model", "huggingface", "task"))
        return task

    def __iter__(self) -> Iterator[str]:
        return iter([*_OWN, *(name for name, each in plugins.group("task").items() if each.is_here)])

    def __len__(self) -> int:
        return sum(1 for _ in self)


TASKS = _Tasks()
