"""What a task writes into the manifest of a language model: the class of the model, and methods with their inputs.

The methods have the names that ExecuTorch's runners call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from etbuild.manifest.mappings import mapping

OF_MODEL = "of_model"
"""The key of an example input whose shape follows from the configuration of the model. Only tasks write it."""

_INT64 = {"dtype": "int64", "fill": "zeros"}
_POSITION = {"shape": [1], **_INT64}


@dataclass(frozen=True)
class Task:
    """What a model is for.

    Attributes:
        model_class: The class of the model, unless the manifest says another.
        runner: The runner for its programs.
        entries: The entry of each method that the task writes, by the name of the method.
        inputs: Makes the inputs of an entry and their dynamic shapes, from the name of the method, the entry and
            `model.huggingface`.
        has_encoder: Whether the model is an encoder and a decoder.
    """

    model_class: str
    runner: str
    entries: dict[str, str]
    inputs: Callable[[str, str, dict[str, Any]], dict[str, Any]]
    has_encoder: bool = False


def of(wanted: dict[str, Any]) -> Task | None:
    """The task that `model.huggingface` names; None if it names none. The schema refuses an unknown one."""
    if "task" not in wanted:
        return None
    name = wanted["task"] if isinstance(wanted["task"], str) else ""
    return TASKS.get(name, TASKS["text-generation"])


def completed(methods: dict[str, Any] | None, task: Task, wanted: dict[str, Any]) -> dict[str, Any]:
    """The methods of a manifest with what the task writes.

    Args:
        methods: The methods of the manifest; those of the task if there are none.
        task: The task.
        wanted: `model.huggingface`.
    """
    methods = methods or {name: {} for name in task.entries}
    return {name: _completed(name, method, task, wanted) for name, method in methods.items()}


def _completed(name: str, method: Any, task: Task, wanted: dict[str, Any]) -> Any:
    """The method with its entry, and with the inputs of the entry if it has none of its own."""
    if not isinstance(method, dict) or "program" in method:
        return method
    entry = method.get("entry", task.entries.get(name, "forward"))
    if entry not in task.entries.values():
        return method
    own = {"example_inputs", "example_kwargs"} & method.keys()
    return {"entry": entry, **({} if own else task.inputs(name, entry, wanted)), **method}


def at(value: Any, place: Sequence[int | str]) -> Any:
    """The part of a value at a place; None if there is none."""
    for key in place:
        try:
            value = value[key]
        except (TypeError, KeyError, IndexError):
            return None
    return value


def longest_call(cache: dict[str, Any]) -> int | None:
    """The largest number of tokens in one call of a decoder; None if the manifest does not say it, or breaks its
    schema."""
    return _positive(cache.get("max_seq_length", cache.get("max_length")))


def _positive(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None


def _tokens(dim: str, longest: int, example: int) -> tuple[dict[str, Any], list[Any] | None]:
    """Tokens as an input, int64 [1, seq], and their dynamic shape; None if they have only one length."""
    dynamic = {"dim": dim, "min": 1, "max": longest} if longest > 1 else None
    return {"shape": [1, min(longest, example)], **_INT64}, None if dynamic is None else [None, dynamic]


def _of_decoder(name: str, entry: str, wanted: dict[str, Any]) -> dict[str, Any]:
    """`decode` takes one token in each call, and every other method any number of them up to the longest call."""
    del entry
    tokens, shapes = _tokens("seq", 1 if name == "decode" else longest_call(mapping(wanted, "cache")) or 1, 8)
    return {"example_inputs": [tokens, _POSITION], **({} if shapes is None else {"dynamic_shapes": [shapes, None]})}


def _of_seq2seq(name: str, entry: str, wanted: dict[str, Any]) -> dict[str, Any]:
    del name
    longest = _positive(wanted.get("max_source_length")) or 1
    source, shapes = _tokens("source", longest, 16)
    if entry == "encode":
        return {"example_inputs": [source], "dynamic_shapes": [shapes]}
    states = {OF_MODEL: "encoder_outputs", "length": source["shape"][1]}
    return _of_text_decoder(states, None if shapes is None else [*shapes, None], wanted)


def _of_speech(name: str, entry: str, wanted: dict[str, Any]) -> dict[str, Any]:
    del name
    if entry == "encode":
        return {"example_inputs": [{OF_MODEL: "features"}]}
    return _of_text_decoder({OF_MODEL: "encoder_outputs"}, None, wanted)


def _of_text_decoder(states: dict[str, Any], shapes: list[Any] | None, wanted: dict[str, Any]) -> dict[str, Any]:
    """ExecuTorch's runner gives one token in each call. `max_seq_length` allows more."""
    tokens, own = _tokens("seq", _positive(mapping(wanted, "cache").get("max_seq_length")) or 1, 8)
    return {"example_inputs": [tokens, states, _POSITION], "dynamic_shapes": [own, shapes, None]}


def _of_image_text(name: str, entry: str, wanted: dict[str, Any]) -> dict[str, Any]:
    """An image has its own method, and tokens and their embeddings have any number up to the longest call."""
    del name
    tokens, shapes = _tokens("seq", longest_call(mapping(wanted, "cache")) or 1, 8)
    if entry == "encode_image":
        return {"example_inputs": [{OF_MODEL: "pixel_values"}]}
    if entry == "embed":
        return {"example_inputs": [tokens], "dynamic_shapes": [shapes]}
    embeddings = {OF_MODEL: "embeddings", "length": tokens["shape"][1]}
    own = None if shapes is None else [*shapes, None]
    return {"example_inputs": [embeddings, _POSITION], "dynamic_shapes": [own, None]}


IMAGE_TOWERS = {
    "gemma3": ("siglip_vision_model",),
    "idefics3": ("idefics3_vision",),
    "internvl": ("internvl_vision",),
    "llava": ("clip_vision_model", "siglip_vision_model"),
    "smolvlm": ("smolvlm_vision",),
}
"""The `model_type` of the models that `image-text-to-text` knows, and of their towers for images: the default of
transformers first. Towers that are missing are not tried, or have a prompt with tokens inside of an image."""

_ENCODER_DECODER = {"encoder": "encode", "text_decoder": "decode"}
TASKS = {
    "text-generation": Task("AutoModelForCausalLM", "executorch-llm/v1", {"forward": "forward"}, _of_decoder),
    "seq2seq": Task("AutoModelForSeq2SeqLM", "executorch-asr/v1", _ENCODER_DECODER, _of_seq2seq, has_encoder=True),
    "speech-to-text": Task(
        "AutoModelForSpeechSeq2Seq", "executorch-asr/v1", _ENCODER_DECODER, _of_speech, has_encoder=True
    ),
    "image-text-to-text": Task(
        "AutoModelForImageTextToText",
        "executorch-multimodal/v1",
        {"vision_encoder": "encode_image", "token_embedding": "embed", "text_decoder": "decode"},
        _of_image_text,
    ),
}
