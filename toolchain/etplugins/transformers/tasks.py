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
            then must have; an `image`; or a `sound`, whose length `max_source_length` may say. Empty for a task with
            another input.
        has_labels: Whether the scores are those of labels, which the configuration has. The program then has
            `get_labels`; one that takes a sound and has none has `get_blank_id`, if the configuration says it.
        outputs: The outputs of transformers' model that `forward` returns, by name. Empty for a model that writes text:
            it needs a cache.
    """

    model_class: str
    runner: str | None
    entries: dict[str, str]
    inputs: Inputs
    has_encoder: bool = False
    takes: str = ""
    has_labels: bool = False
    outputs: tuple[str, ...] = ()


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
    methods = methods or {name: {} for name in task.entries}
    return {name: _completed(name, method, task, huggingface) for name, method in methods.items()}


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


def _of_decoder(name: str, _entry: str, huggingface: HuggingFace) -> Method:
    """`decode` takes one token in each call. Each other method takes any number of tokens up to the longest call."""
    tokens, shapes = _tokens("seq", 1 if name == "decode" else longest_call(huggingface), 8)
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


_ENCODER_DECODER = {"encoder": "encode", "text_decoder": "decode"}
ONE_CALL = {"forward": "forward"}
"""The entries of a task that takes all of its input in one call."""


def _of_labels(model_class: str, inputs: Inputs, takes: str, outputs: tuple[str, ...] = ("logits",)) -> Task:
    """Makes a task that scores labels."""
    return Task(model_class, None, ONE_CALL, inputs, takes=takes, has_labels=True, outputs=outputs)


_OWN = {
    "text-generation": Task("AutoModelForCausalLM", "executorch-llm/v1", ONE_CALL, _of_decoder),
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
    "fill-mask": Task("AutoModelForMaskedLM", None, ONE_CALL, of_text, takes="tokens", outputs=("logits",)),
    "semantic-segmentation": _of_labels("AutoModelForSemanticSegmentation", of_image, "image"),
    "depth-estimation": Task(
        "AutoModelForDepthEstimation", None, ONE_CALL, of_image, takes="image", outputs=("predicted_depth",)
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
