"""Models of transformers with one or several methods. Manifests of this folder name these classes as factories."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.cache_utils import StaticCache, StaticLayer


class Model(nn.Module):
    """A model of transformers."""

    def __init__(self, name: str, config: dict[str, Any]) -> None:
        super().__init__()
        cls = getattr(transformers, name)
        self.model = cls(cls.config_class(**config))


class Network(Model):
    """A model with one input."""

    def forward(self, given: Tensor) -> tuple[Tensor, ...]:
        """Returns the tensors of the model's output."""
        return tuple(value for value in self.model(given).to_tuple() if isinstance(value, Tensor))


class Decoder(Model):
    """A decoder that keeps keys and values of 64 tokens in its buffers."""

    def __init__(self, name: str, config: dict[str, Any]) -> None:
        super().__init__(name, config)
        config_of_text = self.model.config.get_text_config()
        layers = config_of_text.num_hidden_layers
        heads = getattr(config_of_text, "num_key_value_heads", None) or config_of_text.num_attention_heads
        size = getattr(config_of_text, "head_dim", None)
        size = size or config_of_text.hidden_size // config_of_text.num_attention_heads
        for index in range(layers):
            self.register_buffer(f"keys_{index}", torch.zeros(1, heads, 64, size), persistent=False)
            self.register_buffer(f"values_{index}", torch.zeros(1, heads, 64, size), persistent=False)

    def forward(self, tokens: Tensor, position: Tensor) -> Tensor:
        """tokens: int64 [1, seq]; position: int64 [1], of the first token -> scores, float32 [1, seq, vocabulary]"""
        cache = StaticCache(config=self.model.config, max_cache_len=64)
        cache.layers = [StaticLayer(64) for _ in cache.layers]  # not one for sliding windows: a mask hides old tokens
        for index, layer in enumerate(cache.layers):
            layer.keys, layer.values = getattr(self, f"keys_{index}"), getattr(self, f"values_{index}")
            layer.dtype, layer.device, layer.is_initialized = layer.keys.dtype, layer.keys.device, True
            layer.cumulative_length = position[0].clone()
        return self.model(input_ids=tokens, past_key_values=cache, use_cache=True).logits


class EncoderDecoder(Model):
    """An encoder, and a decoder without a cache."""

    def encode(self, given: Tensor) -> Tensor:
        """The hidden states of the encoder: float32 [1, length, width]"""
        return self.model.get_encoder()(given)[0]

    def decode(self, tokens: Tensor, states: Tensor) -> Tensor:
        """tokens: int64 [1, seq]; states: what `encode` returned -> scores, float32 [1, seq, vocabulary]"""
        return self.model(decoder_input_ids=tokens, encoder_outputs=(states,)).logits


class TwoTowers(Model):
    """CLIP: one space for texts and images."""

    def text(self, tokens: Tensor) -> Tensor:
        """tokens: int64 [1, seq] -> float32 [1, width]"""
        return self.model.text_projection(self.model.text_model(tokens).pooler_output)

    def image(self, pixels: Tensor) -> Tensor:
        """pixels: float32 [1, 3, size, size] -> float32 [1, width]"""
        return self.model.visual_projection(self.model.vision_model(pixels).pooler_output)

    def compare(self, tokens: Tensor, pixels: Tensor) -> Tensor:
        """The similarity of a text and an image: float32 [1, 1]"""
        return self.model(tokens, pixels).logits_per_text
