"""Gives a model for images and text three entries, as ExecuTorch's runner calls them.

`encode_image(pixel_values)` takes one image, float [1, channels, height, width], and returns its tokens as embeddings,
float [1, tokens, hidden]. `embed(tokens)` takes int64 [1, seq] and returns their embeddings, [1, seq, hidden].
`decode(embeddings, position)` takes what they returned, and int64 [1]: the position of the first one. It returns scores
like the `forward` of `decoder_cache`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from etbuild.errors import DocumentPath, InputError
from etbuild.model import decoder_cache
from etbuild.plan.parts import DecoderCache, HuggingFace, ModelExample

_TASK: DocumentPath = ("model", "huggingface", "task")
_KNOWN = ("llava",)
"""The `model_type` of models that are tried: their decoder needs nothing but embeddings in their order. Those of others
need to know which belong to an image: for positions in two dimensions, or because those attend in both directions."""
_TOWERS = ("clip_vision_model", "siglip_vision_model")
"""The `model_type` of their towers for images. A prompt of others, such as Pixtral, has tokens inside of an image."""

Entries = dict[str, Callable[..., torch.Tensor]]


def add(model: Any, wanted: HuggingFace, cache: DecoderCache) -> Entries:
    """Adds the buffers of a cache to a model for images and text.

    Args:
        model: The model. It is changed in place.
        wanted: What the manifest says about it.
        cache: The cache of the decoder.

    Returns:
        The new methods of its class.

    Raises:
        InputError: The model is not one for images and text, or the cache does not fit it.
    """
    kind = model.config.model_type
    if kind not in _KNOWN:
        hint = f"write a factory for this model; known: {', '.join(_KNOWN)}"
        raise InputError.at(_TASK, f"`{kind}` is not among the models for images that this task knows", hint)
    tower = model.config.vision_config.model_type
    if tower not in _TOWERS:
        hint = f"write a factory for this model; known: {', '.join(_TOWERS)}"
        raise InputError.at(_TASK, f"the tower `{tower}` is not among those that this task knows", hint)
    decode = decoder_cache.add(model, wanted, cache, takes="inputs_embeds")
    _check_length(model, cache.longest_call)

    def encode_image(self: Any, pixel_values: torch.Tensor) -> torch.Tensor:
        return _features(self, pixel_values)

    def embed(self: Any, tokens: torch.Tensor) -> torch.Tensor:
        embeddings: torch.Tensor = self.get_input_embeddings()(tokens)
        return embeddings

    return {"encode_image": encode_image, "embed": embed, "decode": decode}


def _features(model: Any, pixel_values: torch.Tensor) -> torch.Tensor:
    found = model.get_image_features(pixel_values=pixel_values, return_dict=True).pooler_output
    features = torch.cat(list(found)) if isinstance(found, (list, tuple)) else found
    return features.reshape(1, -1, features.shape[-1])


def _check_length(model: Any, longest: int) -> None:
    """Checks that a call of the decoder has room for an image.

    This also lets transformers install the hooks that collect the states of some layers. It does so when a model first
    runs, and hooks that are installed during an export do not stay.
    """
    with torch.no_grad():
        tokens = _features(model, _image(model)).shape[1]
    if tokens > longest:
        path: DocumentPath = ("model", "huggingface", "cache")
        message = f"an image has {tokens} tokens, and a call of `text_decoder` at most {longest}"
        hint = f"write `max_seq_length: {tokens}` or more, and a `max_length` that has room for the text too"
        raise InputError.at(path, message, hint)


def _image(model: Any) -> torch.Tensor:
    """An image, with zeros."""
    vision = model.config.vision_config
    size = vision.image_size if isinstance(vision.image_size, (list, tuple)) else (vision.image_size,) * 2
    return torch.zeros((1, vision.num_channels, *size), dtype=model.dtype)


def example(model: Any, wanted: ModelExample) -> torch.Tensor:
    """An example input of one of the entries, with zeros."""
    if wanted.of_model == "pixel_values":
        return _image(model)
    assert wanted.length is not None
    return torch.zeros((1, wanted.length, model.config.get_text_config(decoder=True).hidden_size), dtype=model.dtype)
