"""Further values after each embedding of tokens and images, for decoders that need more than embeddings.

ExecuTorch's runner gives the results of the other methods to `text_decoder` unchanged. So these methods append values
to each embedding, and the decoder splits them off again.
"""

from __future__ import annotations

import inspect
from typing import Any, Protocol

import torch

from etbuild.errors import DocumentPath, InputError
from etbuild.model.module import set_methods
from etplugins.transformers.families import family
from etplugins.transformers.image_inputs import ImageTokens
from etplugins.transformers.known_values import KnownValues
from etplugins.transformers.parts import DecoderCache

_TASK: DocumentPath = ("model", "huggingface", "task")


class EmbeddingPart(Protocol):
    """Some values after each embedding.

    Attributes:
        width: The number of values for an embedding.
    """

    width: int

    def of_image(self, model: Any, image: ImageTokens) -> torch.Tensor:
        """The values of an image, float [1, tokens, width]."""

    def of_text(self, embeddings: torch.Tensor) -> torch.Tensor:
        """The values for the embeddings of tokens, [1, seq, hidden]: float [1, seq, width]."""

    def inputs(
        self, model: Any, embeddings: torch.Tensor, values: torch.Tensor, cache: Any, position: torch.Tensor
    ) -> dict[str, object]:
        """The inputs of the decoder for a call, by name.

        Args:
            model: The model.
            embeddings: The embeddings, float [1, seq, hidden].
            values: The values after them, float [1, seq, width].
            cache: transformers' cache.
            position: The position of the first embedding in the cache, int64 [1].
        """


class Blocks:
    """One value, 1 for an image and 0 for a token, for a decoder in which the tokens of an image attend to each other.

    transformers numbers the images of a text by position, and makes masks of the numbers. So the numbers of a call are
    put at the positions of the call, among all positions of the cache.
    """

    width = 1

    def __init__(self, cache: DecoderCache) -> None:
        self._length = cache.max_length

    def of_image(self, model: Any, image: ImageTokens) -> torch.Tensor:
        """Ones, float [1, tokens, 1]."""
        return torch.ones_like(image.tokens[..., :1])

    def of_text(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Zeros."""
        return torch.zeros_like(embeddings[..., :1])

    def inputs(
        self, model: Any, embeddings: torch.Tensor, values: torch.Tensor, cache: Any, position: torch.Tensor
    ) -> dict[str, object]:
        """The masks of all layers."""
        from transformers.models.gemma3 import modeling_gemma3

        numbers = modeling_gemma3.get_block_sequence_ids_for_mask((values[..., 0] > 0.5).long())[0]
        indexes = torch.arange(self._length) - position
        is_in_call = (indexes >= 0) & (indexes < numbers.shape[0])
        blocks = torch.where(is_in_call, numbers[torch.where(is_in_call, indexes, 0)], -1).unsqueeze(0)
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
    """Positions in time, height and width (M-RoPE), as four distances for each token.

    Three distances go from the beginning of an image or of a token of text to the token's position in time, height and
    width. The fourth goes to the beginning of the next token. All tokens of an image begin at the position of the first
    one, so that the fourth distance is 0 for all but the last. `get_rope_index` of the model gives the distances of an
    image; those of a token of text are 0, 0, 0 and 1.

    A runner counts tokens in one dimension. So a buffer of the model holds, for each position in the cache, where the
    token there begins. A call reads the buffer at its position, and writes it for the positions after its tokens. The
    buffer is 0 at position 0, where a text begins, and a runner may go back to any earlier position.
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
                input_ids=torch.zeros((1, count + 1), dtype=torch.int64),  # an image, and a token after it
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
        distance = torch.ones_like(embeddings[..., :1])
        return torch.cat([torch.zeros_like(embeddings[..., :3]), distance], dim=-1)

    def inputs(
        self, model: Any, embeddings: torch.Tensor, values: torch.Tensor, cache: Any, position: torch.Tensor
    ) -> dict[str, object]:
        """The positions in time, height and width, int64 [3, 1, seq]."""
        distances = values[0].long()
        ends = model.next_positions[position] + distances[:, 3].cumsum(0)
        positions = (ends - distances[:, 3]).unsqueeze(-1) + distances[:, :3]
        indices = torch.arange(ends.shape[0]) + position + 1
        model.next_positions.index_copy_(0, indices, ends)
        return {"position_ids": positions.T.unsqueeze(1)}


class DeepFeatures:
    """Values that the decoder adds to its states after each of its first layers (DeepStack): from layers of the tower
    for an image, and 0 for a token."""

    def __init__(self, model: Any, image: ImageTokens) -> None:
        self._sizes = [layer.shape[-1] for layer in image.layers]
        self.width = sum(self._sizes)
        decoder = model.get_decoder()
        kind = type(decoder)
        if not takes_features(decoder):
            message = f"`{kind.__name__}` does not take what the tower gives to layers of the decoder"
            raise InputError.at(_TASK, message, "write a factory for this model")
        original = kind.forward

        def forward(self: Any, *inputs: Any, deep_features: Any = None, **keywords: Any) -> Any:
            features = {"deepstack_visual_embeds": deep_features} if deep_features is not None else {}
            return original(self, *inputs, **{**keywords, **features})

        def add(self: Any, hidden_states: Any, visual_pos_masks: Any, visual_embeds: Any) -> Any:
            del self, visual_pos_masks  # selecting by this mask would make shapes depend on values
            return hidden_states + visual_embeds

        set_methods(decoder, forward=forward, _deepstack_process=add)

    def of_image(self, model: Any, image: ImageTokens) -> torch.Tensor:
        """The values of all layers, one after the other."""
        return torch.cat(image.layers, dim=-1)

    def of_text(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Zeros."""
        return torch.zeros_like(embeddings[..., :1]).expand(-1, -1, self.width)

    def inputs(
        self, model: Any, embeddings: torch.Tensor, values: torch.Tensor, cache: Any, position: torch.Tensor
    ) -> dict[str, object]:
        """The values of each layer."""
        return {"deep_features": list(values.split(self._sizes, dim=-1))}


def takes_features(decoder: Any) -> bool:
    """Whether a decoder adds features of images to its states.

    Args:
        decoder: The decoder of transformers.
    """
    takes = "deepstack_visual_embeds" in inspect.signature(type(decoder).forward).parameters
    return takes and hasattr(decoder, "_deepstack_process")


def needed(model: Any, cache: DecoderCache, image: ImageTokens) -> list[EmbeddingPart]:
    """The parts that a decoder needs, in their order after the embeddings.

    Args:
        model: The model for images and text. It may be changed in place.
        cache: The cache of its decoder.
        image: The tokens of an image.

    Raises:
        InputError: The decoder needs a part that it does not take.
    """
    parts: list[EmbeddingPart] = []
    if image.layers:
        parts.append(DeepFeatures(model, image))
    if hasattr(model.base_model, "get_rope_index"):
        parts.append(GridPositions(model, cache))
    if family(model.config.model_type).looks_ahead:
        parts.append(Blocks(cache))
    return parts
