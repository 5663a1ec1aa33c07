"""Gives a model for images and text three entries, as ExecuTorch's runner calls them.

`encode_image(pixel_values)` takes one image, float [1, channels, height, width], and returns its tokens as embeddings,
float [1, tokens, width]. `embed(tokens)` takes int64 [1, seq] and returns embeddings, [1, seq, width].
`decode(embeddings, position)` takes embeddings of images or tokens, and the position of the first one, int64 [1]. It
returns scores like the `forward` of `decoder_cache`.

The width is the hidden size of the decoder, and larger for a decoder that needs more than embeddings
(`embedding_parts.py`). The runner gives embeddings to `decode` unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from etbuild.errors import DocumentPath, InputError
from etbuild.plan.parts import ModelExample
from etplugins.transformers import decoder_cache, embedding_parts, image_inputs
from etplugins.transformers.embedding_parts import EmbeddingPart
from etplugins.transformers.families import family, refusal
from etplugins.transformers.image_inputs import ImageTokens
from etplugins.transformers.parts import DecoderCache, HuggingFace

_TASK: DocumentPath = ("model", "huggingface", "task")

Entries = dict[str, Callable[..., torch.Tensor]]


def check(config: Any) -> None:
    """Checks that the task supports a model, before the model takes memory.

    Args:
        config: The configuration of the model.

    Raises:
        InputError: The task does not support it.
    """
    kind = config.model_type
    refused = refusal(kind, config.vision_config.model_type if family(kind).towers else None)
    if refused is not None:
        raise InputError.at(_TASK, refused[0], f"write a factory for this model; known: {refused[1]}")


def add(model: Any, settings: HuggingFace, cache: DecoderCache) -> Entries:
    """Adds the buffers of a cache to a model for images and text.

    Args:
        model: The model. It is changed in place.
        settings: The model in the plan.
        cache: The cache of the decoder.

    Returns:
        The new methods for the class of the model, by name.

    Raises:
        InputError: The model is not a decoder with a cache, or the cache does not fit it.
    """
    parts = embedding_parts.needed(model, cache, _smallest_image(model))
    longest = cache.longest_call

    def embed(self: Any, tokens: torch.Tensor) -> torch.Tensor:
        embeddings = self.get_input_embeddings()(tokens)
        return _joined([embeddings, *(part.of_text(embeddings) for part in parts)])

    def encode_image(self: Any, pixel_values: torch.Tensor) -> torch.Tensor:
        image = _checked(image_inputs.encoded(self, pixel_values), longest)
        return _joined([image.tokens, *(part.of_image(self, image) for part in parts)])

    def token(self: Any) -> torch.Tensor:
        return embed(self, torch.zeros((1, 1), dtype=torch.int64))

    forward = decoder_cache.add(model, settings, cache, _keywords(parts), token)["forward"]

    def decode(self: Any, embeddings: torch.Tensor, cache_position: torch.Tensor) -> torch.Tensor:
        return forward(self, embeddings, cache_position)

    return {"encode_image": encode_image, "embed": embed, "decode": decode}


def _joined(values: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([*values], dim=-1) if len(values) > 1 else values[0]


def _keywords(parts: Sequence[EmbeddingPart]) -> decoder_cache.Keywords:
    """A function that makes the inputs of a decoder from embeddings with the values after them."""
    width = sum(part.width for part in parts)

    def keywords(model: Any, joined: torch.Tensor, cache: Any, position: torch.Tensor) -> dict[str, object]:
        embeddings, *values_of_parts = joined.split([joined.shape[-1] - width, *(part.width for part in parts)], dim=-1)
        inputs: dict[str, object] = {"inputs_embeds": embeddings}
        for part, values in zip(parts, values_of_parts, strict=True):
            inputs.update(part.inputs(model, embeddings, values, cache, position))
        return inputs

    return keywords


def _smallest_image(model: Any) -> ImageTokens:
    """The tokens of the smallest image.

    This call also lets transformers install hooks that collect the states of some layers. It installs them in the first
    call of a model, and hooks that are installed during an export are removed again.
    """
    with torch.no_grad():
        return image_inputs.encoded(model, image_inputs.smallest(model))


def _checked(image: ImageTokens, longest: int) -> ImageTokens:
    """Checks that a call of the decoder has room for an image."""
    tokens = image.tokens.shape[1]
    if tokens > longest:
        path: DocumentPath = ("model", "huggingface", "cache")
        message = f"an image has {tokens} tokens, and a call of `text_decoder` at most {longest}"
        hint = f"write `max_seq_length: {tokens}` or more, and a `max_length` that has room for the text too"
        raise InputError.at(path, message, hint)
    return image


def example(model: Any, example_plan: ModelExample, path: DocumentPath) -> torch.Tensor:
    """An example input of one of the entries, with zeros.

    Args:
        model: The model.
        example_plan: The input in the plan.
        path: The document path of the input.

    Raises:
        InputError: Neither the configuration nor the manifest says the size of an image.
    """
    if example_plan.of_model == "pixel_values":
        shape = image_inputs.shape(model)
        if shape is None:
            message = f"`{type(model).__name__}` takes images of many sizes, and a method takes one"
            hint = f"write `{path[1]}: {{example_inputs: [{{shape: [1, 3, HEIGHT, WIDTH]}}]}}` in `methods`"
            raise InputError.at(path[:2], message, hint)
        return torch.zeros(shape, dtype=model.dtype)
    assert example_plan.length is not None
    return torch.zeros_like(model.embed(torch.zeros((1, example_plan.length), dtype=torch.int64)))
