"""Gives a model for images and text three entries, as ExecuTorch's runner calls them.

`encode_image(pixel_values)` takes one image, float [1, channels, height, width], and returns its tokens as embeddings,
float [1, tokens, width]. `embed(tokens)` takes int64 [1, seq] and returns their embeddings, [1, seq, width].
`decode(embeddings, position)` takes what they returned, and int64 [1]: the position of the first one. It returns scores
like the `forward` of `decoder_cache`.

The width is the hidden size of the decoder. It is one more for a decoder that has to know which embeddings belong to an
image: the last value says so, 1 for an image and 0 for a token. The runner gives embeddings to `decode` as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from etbuild.errors import DocumentPath, InputError
from etbuild.manifest.tasks import IMAGE_TOWERS
from etbuild.model import decoder_cache
from etbuild.plan.parts import DecoderCache, HuggingFace, ModelExample

_TASK: DocumentPath = ("model", "huggingface", "task")

Entries = dict[str, Callable[..., torch.Tensor]]


def _pooled(model: Any, pixel_values: torch.Tensor) -> Any:
    """The tokens of an image, as most models give them: [1, tokens, hidden], or a list with [tokens, hidden]."""
    return model.get_image_features(pixel_values=pixel_values, return_dict=True).pooler_output


def _connected(model: Any, pixel_values: torch.Tensor) -> Any:
    """The tokens of an image of Idefics 3. Its `get_image_features` drops images whose values are all zero, so that the
    number of tokens would follow from the values."""
    return model.model.connector(
        model.model.vision_model(pixel_values=pixel_values, return_dict=True).last_hidden_state
    )


_FEATURES = {"idefics3": _connected, "smolvlm": _connected}
_WITH_BLOCKS = ("gemma3",)
"""The models whose tokens of an image attend to each other in both directions."""

_TILES = "an image becomes a number of tiles that follows from its size, with tokens between them"
_POSITIONS = "an image has positions in several dimensions (M-RoPE), and the runner counts them in one"
_REASONS = {
    "llava_next": _TILES,
    "llava_onevision": _TILES,
    "paligemma": "a prompt attends to its image and to itself in both directions, and the runner gives it in parts",
    "mllama": "its decoder attends to images beside the text (cross-attention)",
    **dict.fromkeys(("glm4v", "qwen2_vl", "qwen2_5_vl", "qwen3_vl"), _POSITIONS),
}
"""Why models of other types cannot be programs for the runner, as far as it is known."""


def check(config: Any) -> None:
    """Checks that a model is one of those that the task knows, before it takes memory.

    Args:
        config: The configuration of the model.

    Raises:
        InputError: It is not.
    """
    kind, hint = config.model_type, "write a factory for this model"
    if kind not in IMAGE_TOWERS:
        why = f": {_REASONS[kind]}" if kind in _REASONS else ""
        message = f"`{kind}` is not among the models for images that this task knows{why}"
        raise InputError.at(_TASK, message, f"{hint}; known: {', '.join(IMAGE_TOWERS)}")
    towers, tower = IMAGE_TOWERS[kind], config.vision_config.model_type
    if tower not in towers:
        message = f"the tower `{tower}` of `{kind}` is not among those that this task knows"
        raise InputError.at(_TASK, message, f"{hint}; known: {', '.join(towers)}")


def add(model: Any, wanted: HuggingFace, cache: DecoderCache) -> Entries:
    """Adds the buffers of a cache to a model for images and text.

    Args:
        model: The model. It is changed in place.
        wanted: What the manifest says about it.
        cache: The cache of the decoder.

    Returns:
        The new methods of its class.

    Raises:
        InputError: The model is not a decoder with a cache, or the cache does not fit it.
    """
    keywords = _of_blocks(cache) if _has_blocks(model) else _of_embeddings
    forward = decoder_cache.add(model, wanted, cache, keywords)
    _check_length(model, cache.longest_call)

    def encode_image(self: Any, pixel_values: torch.Tensor) -> torch.Tensor:
        return _marked(self, _features(self, pixel_values), is_image=True)

    def embed(self: Any, tokens: torch.Tensor) -> torch.Tensor:
        return _marked(self, self.get_input_embeddings()(tokens), is_image=False)

    def decode(self: Any, embeddings: torch.Tensor, cache_position: torch.Tensor) -> torch.Tensor:
        return forward(self, embeddings, cache_position)

    return {"encode_image": encode_image, "embed": embed, "decode": decode}


def _has_blocks(model: Any) -> bool:
    return model.config.model_type in _WITH_BLOCKS


def _features(model: Any, pixel_values: torch.Tensor) -> torch.Tensor:
    """The tokens of an image, float [1, tokens, hidden]."""
    found = _FEATURES.get(model.config.model_type, _pooled)(model, pixel_values)
    features = torch.cat(list(found)) if isinstance(found, (list, tuple)) else found
    return features.reshape(1, -1, features.shape[-1])


def _marked(model: Any, embeddings: torch.Tensor, *, is_image: bool) -> torch.Tensor:
    """The embeddings with a last value that says whether they belong to an image, if the decoder needs it."""
    if not _has_blocks(model):
        return embeddings
    mark = torch.ones_like if is_image else torch.zeros_like
    return torch.cat([embeddings, mark(embeddings[..., :1])], dim=-1)


def _of_embeddings(model: Any, embeddings: torch.Tensor, cache: Any, position: torch.Tensor) -> dict[str, object]:
    del model, cache, position
    return {"inputs_embeds": embeddings}


def _of_blocks(wanted: DecoderCache) -> decoder_cache.Keywords:
    """Makes the inputs of a decoder in which the tokens of an image attend to each other.

    transformers numbers the images of a text, and makes masks of the numbers. They belong to positions of the text, so
    that those of a call have to stand at their places among all positions of the cache.
    """
    from transformers.models.gemma3 import modeling_gemma3

    def keywords(model: Any, marked: torch.Tensor, cache: Any, position: torch.Tensor) -> dict[str, object]:
        embeddings, is_image = marked[..., :-1], marked[..., -1] > 0.5
        own = modeling_gemma3.get_block_sequence_ids_for_mask(is_image.long())[0]
        indexes = torch.arange(wanted.max_length) - position
        here = (indexes >= 0) & (indexes < own.shape[0])
        blocks = torch.where(here, own[torch.where(here, indexes, 0)], -1).unsqueeze(0)
        masks = modeling_gemma3.create_masks_for_vision_model(
            config=model.config.get_text_config(decoder=True),
            inputs_embeds=embeddings,
            attention_mask=None,
            past_key_values=cache,
            position_ids=None,
            block_sequence_ids=blocks,
        )
        return {"inputs_embeds": embeddings, "attention_mask": masks}

    return keywords


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
    width = model.config.get_text_config(decoder=True).hidden_size + _has_blocks(model)
    return torch.zeros((1, wanted.length, width), dtype=model.dtype)
