"""A transformer like Llama, of any size: rotary positions, grouped heads, RMSNorm and SwiGLU."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HEAD = 32


class Block(nn.Module):
    """One layer: attention and feed-forward, each behind a norm and a residual. Two heads share their keys."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.attention_norm, self.feed_forward_norm = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.query, self.out = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.key, self.value = nn.Linear(dim, dim // 2, bias=False), nn.Linear(dim, dim // 2, bias=False)
        self.gate, self.up = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, 3 * dim, bias=False)
        self.down = nn.Linear(3 * dim, dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x: [1, seq, dim]; cos and sin: [seq, HEAD] -> [1, seq, dim]"""
        normed = self.attention_norm(x)
        q, k, v = (
            layer(normed).unflatten(-1, (-1, HEAD)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        k, v = (each.repeat_interleave(2, dim=1) for each in (_rotated(k, cos, sin), v))
        attended = F.scaled_dot_product_attention(_rotated(q, cos, sin), k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        normed = self.feed_forward_norm(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Transformer(nn.Module):
    """A language model with two entry points that use the same weights."""

    def __init__(self, layers: int, dim: int, vocab_size: int = 256, max_seq_len: int = 128) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, dim)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(dim), nn.Linear(dim, vocab_size, bias=False)
        frequencies = 10000.0 ** (-torch.arange(0, HEAD, 2) / HEAD)
        angles = torch.outer(torch.arange(max_seq_len), frequencies).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def _body(self, tokens: Tensor) -> Tensor:
        x, length = self.tokens(tokens), tokens.shape[1]
        for block in self.blocks:
            x = block(x, self.cos[:length], self.sin[:length])
        return self.norm(x)

    def logits(self, tokens: Tensor) -> Tensor:
        """tokens: int64 [1, seq] -> the next token's logits, float32 [1, vocab_size]"""
        return self.head(self._body(tokens)[:, -1])

    def embed(self, tokens: Tensor) -> Tensor:
        """tokens: int64 [1, seq] -> the embedding of the whole text, float32 [1, dim]"""
        return self._body(tokens).mean(1)


def create(layers: int, dim: int) -> Transformer:
    """The module that the manifests name as their factory."""
    return Transformer(layers, dim)
