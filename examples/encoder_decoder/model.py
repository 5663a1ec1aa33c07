"""Speech to text, similar to Whisper: an encoder of spectrograms, and a decoder of tokens that attends to it."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def sinusoids(length: int, dim: int) -> Tensor:
    """Sinusoidal position embeddings: float32 [length, dim].

    Computed in float64 and then rounded, which gives the same float32 on every processor.
    """
    steps = torch.arange(dim // 2, dtype=torch.float64) / (dim // 2 - 1)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), torch.exp(-math.log(10000.0) * steps))
    return torch.cat((angles.sin(), angles.cos()), dim=1).float()


class Attention(nn.Module):
    """Multi-head attention of `x` to `context`."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim, bias=False)
        self.value = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor, context: Tensor, causal: bool = False) -> Tensor:
        """x: [1, length, dim]; context: [1, seen, dim] -> [1, length, dim]"""
        q, k, v = self._split(self.query(x)), self._split(self.key(context)), self._split(self.value(context))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.out(y.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        """[1, length, dim] -> [1, heads, length, dim / heads]"""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Block(nn.Module):
    """A transformer layer; in the decoder, self-attention is causal and cross-attention follows."""

    def __init__(self, dim: int, heads: int, decoder: bool = False) -> None:
        super().__init__()
        self.attention = Attention(dim, heads)
        self.attention_norm = nn.LayerNorm(dim)
        self.cross_attention = Attention(dim, heads) if decoder else None
        self.cross_attention_norm = nn.LayerNorm(dim) if decoder else None
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.mlp_norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor, encoded: Tensor | None = None) -> Tensor:
        """x: [1, length, dim]; encoded: [1, seen, dim] -> [1, length, dim]"""
        y = self.attention_norm(x)
        x = x + self.attention(y, y, causal=self.cross_attention is not None)
        if self.cross_attention is not None:
            x = x + self.cross_attention(self.cross_attention_norm(x), encoded)
        return x + self.mlp(self.mlp_norm(x))


class Encoder(nn.Module):
    """Two convolutions that halve the frames, then transformer blocks."""

    def __init__(self, mels: int, frames: int, dim: int, heads: int, layers: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(mels, dim, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(dim, dim, kernel_size=3, stride=2, padding=1)
        self.register_buffer("positions", sinusoids(frames // 2, dim), persistent=False)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)

    def forward(self, spectrogram: Tensor) -> Tensor:
        """spectrogram: float32 [1, frames, mels] -> float32 [1, frames / 2 rounded up, dim]"""
        x = F.gelu(self.conv1(spectrogram.transpose(1, 2)))
        x = F.gelu(self.conv2(x)).transpose(1, 2)
        x = x + self.positions[: x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class Decoder(nn.Module):
    """Transformer blocks with causal self-attention and cross-attention to the encoder's output."""

    def __init__(self, vocab_size: int, tokens: int, dim: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, dim)
        self.positions = nn.Parameter(torch.zeros(tokens, dim))
        self.blocks = nn.ModuleList(Block(dim, heads, decoder=True) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab_size, bias=False)

    def forward(self, tokens: Tensor, encoded: Tensor) -> Tensor:
        """tokens: int64 [1, length]; encoded: float32 [1, seen, dim] -> logits, float32 [1, length, vocab_size]"""
        x = self.embedding(tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, encoded)
        return self.head(self.norm(x))


class SpeechToText(nn.Module):
    """Both halves. The manifest makes each a method."""

    def __init__(self, encoder: Encoder, decoder: Decoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder


def create(
    mels: int, max_frames: int, vocab_size: int, max_tokens: int, dim: int = 64, heads: int = 4, layers: int = 2
) -> SpeechToText:
    """The module that the manifest names as its factory."""
    encoder = Encoder(mels, max_frames, dim, heads, layers)
    decoder = Decoder(vocab_size, max_tokens, dim, heads, layers)
    return SpeechToText(encoder, decoder)
