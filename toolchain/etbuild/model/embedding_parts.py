"""What stands behind the embeddings of tokens and images, because the decoder needs to know more than embeddings.

ExecuTorch's runner gives to `text_decoder` what the other methods return, as it is. So a method puts more values behind
each embedding, and the decoder takes them off again.
"""

from __future__ import annotations

import inspect
from typing import Any, Protocol

import torch

from etbuild.errors import DocumentPath, InputError
from etbuild.model.image_inputs import ImageTokens
from etbuild.model.known_values import KnownValues
from etbuild.model.module import set_methods
from etbuild.plan.parts import DecoderCache

_TASK: DocumentPath = ("model", "huggingface", "task")


class Part(Protocol):
    """Some values behind each embedding.

    Attributes:
        width: How many they are.
    """

    width: int

    def of_image(self, model: Any, image: ImageTokens) -> torch.Tensor:
        """The values of an image, float [1, tokens, width]."""

    def of_text(self, embeddings: torch.Tensor) -> torch.Tensor:
        """The values of tokens with these embeddings, [1, seq, hidden]: float [1, seq, width]."""

    def inputs(
        self, model: Any, embeddings: torch.Tensor, own: torch.Tensor, cache: Any, position: torch.Tensor
    ) -> dict[str, object]:
        """What the decoder gets for a call.

        Args:
            model: The model.
            embeddings: Float [1, seq, hidden].
            own: Their values, float [1, seq, width].
            cache: transformers' cache.
            position: The position of the first one in the cache, int64 [1].
        """


class Blocks:
    """One value, 1 for an image and 0 for a token, for a decoder in which the tokens of an image attend to each other.

    transformers numbers the images of a text, and makes masks of the numbers. They belong to positions of the text, so
    that those of a call have to stand at their places among all positions of the cache.
    """

    width = 1

    def __init__(self, cache: DecoderCache) -> None:
        self._length = cache.max_length

    def of_image(self, model: Any, image: ImageTokens) -> torch.Tensor:
        """Ones."""
        return torch.ones_like(image.tokens[..., :1])

    def of_text(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Zeros."""
        return torch.zeros_like(embeddings[..., :1])

    def inputs(
        self, model: Any, embeddings: torch.Tensor, own: torch.Tensor, cache: Any, position: torch.Tensor
    ) -> dict[str, object]:
        """The masks of all layers."""
        from transformers.models.gemma3 import modeling_gemma3

        own = modeling_gemma3.get_block_sequence_ids_for_mask((own[..., 0] > 0.5).long())[0]
        indexes = torch.arange(self._length) - position
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
        return {"attention_mask": masks}


class GridPositions:
    """Positions in time, height and width (M-RoPE): three distances from the position at which an image or a token
    begins, and the distance to what follows it.

    All tokens of an image begin at the position of the first one, so that the last distance is 0 for all but the last
    token. `get_rope_index` of the model says the distances. Of a token, they are 0, 0, 0 and 1.

    A runner counts tokens in one dimension. So a buffer of the model holds for each position in the cache where the
    next token begins. A call reads it at its own position, and writes it for the positions after its tokens. The buffer
    is 0 at position 0, where a text begins, and a runner may go back to any earlier position.
    """

    width = 4

    def __init__(self, model: Any, cache: DecoderCache) -> None:
        starts = torch.zeros(cache.max_length + 1, dtype=torch.int64)
        model.register_buffer("next_positions", starts, persistent=False)

    def of_image(self, model: Any, image: ImageTokens) -> torch.Tensor:
        """The distances in an image."""
        count, dtype = image.tokens.shape[1], image.tokens.dtype
        with KnownValues():
            positions, _ = model.base_model.get_rope_index(
                input_ids=torch.zeros((1, count + 1), dtype=torch.int64),  # the image and a token after it
                mm_token_type_ids=torch.tensor([[1] * count + [0]]),
                image_grid_thw=image.grid,
            )
            following = torch.tensor([0] * (count - 1) + [int(positions[0, 0, count])])
            distances = torch.cat([positions[:, 0, :count], following[None]]).T[None].contiguous()
            values = distances.to(dtype)
            if not bool((values.long() == distances).all()):
                message = f"the positions in an image with {count} tokens cannot be numbers in {dtype}"
                raise InputError.at(("model", "dtype"), message, "write `dtype: float32`, or a smaller image")
            return values

    def of_text(self, embeddings: torch.Tensor) -> torch.Tensor:
        """0, 0, 0 and 1."""
        one = torch.ones_like(embeddings[..., :1])
        return torch.cat([torch.zeros_like(embeddings[..., :3]), one], dim=-1)

    def inputs(
        self, model: Any, embeddings: torch.Tensor, own: torch.Tensor, cache: Any, position: torch.Tensor
    ) -> dict[str, object]:
        """The positions, int64 [3, 1, seq]."""
        distances = own[0].long()
        ends = model.next_positions[position] + distances[:, 3].cumsum(0)
        positions = (ends - distances[:, 3]).unsqueeze(-1) + distances[:, :3]
        places = torch.arange(ends.shape[0]) + position + 1
        model.next_positions.index_copy_(0, places, ends)
        return {"position_ids": positions.T.unsqueeze(1)}


class DeepFeatures:
    """What the decoder adds to its states after each of its first layers (DeepStack): the values of an image come from
    layers of its tower, and those of a token are 0."""

    def __init__(self, model: Any, image: ImageTokens) -> None:
        self._sizes = [each.shape[-1] for each in image.layers]
        self.width = sum(self._sizes)
        decoder = model.get_decoder()
        kind = type(decoder)
        if not takes_features(decoder):
            message = f"`{kind.__name__}` does not take what the tower gives to layers of the decoder"
            raise InputError.at(_TASK, message, "write a factory for this model")
        original = kind.forward

        def forward(self: Any, *inputs: Any, deep_features: Any = None, **keywords: Any) -> Any:
            given = {"deepstack_visual_embeds": deep_features} if deep_features is not None else {}
            return original(self, *inputs, **{**keywords, **given})

        def add(self: Any, hidden_states: Any, visual_pos_masks: Any, visual_embeds: Any) -> Any:
            del self, visual_pos_masks  # which tokens belong to an image would decide the shape of a tensor
            return hidden_states + visual_embeds

        set_methods(decoder, forward=forward, _deepstack_process=add)

    def of_image(self, model: Any, image: ImageTokens) -> torch.Tensor:
        """The values of all layers, one after the other."""
        return torch.cat(image.layers, dim=-1)

    def of_text(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Zeros."""
        return torch.zeros_like(embeddings[..., :1]).expand(-1, -1, self.width)

    def inputs(
        self, model: Any, embeddings: torch.Tensor, own: torch.Tensor, cache: Any, position: torch.Tensor
    ) -> dict[str, object]:
        """The values of each layer."""
        return {"deep_features": list(own.split(self._sizes, dim=-1))}


def takes_features(decoder: Any) -> bool:
    """Whether a decoder adds features of images to its states.

    Args:
        decoder: The decoder of transformers.
    """
    takes = "deepstack_visual_embeds" in inspect.signature(type(decoder).forward).parameters
    return takes and hasattr(decoder, "_deepstack_process")


def needed(model: Any, cache: DecoderCache, image: ImageTokens) -> list[Part]:
    """The parts that a decoder needs. Their order is that behind the embeddings.

    Args:
        model: The model for images and text. It may be changed in place.
        cache: The cache of its decoder.
        image: The tokens of an image.

    Raises:
        InputError: The decoder cannot have what it needs.
    """
    parts: list[Part] = []
    if image.layers:
        parts.append(DeepFeatures(model, image))
    if hasattr(model.base_model, "get_rope_index"):
        parts.append(GridPositions(model, cache))
    if model.config.model_type == "gemma3":
        parts.append(Blocks(cache))
    return parts
