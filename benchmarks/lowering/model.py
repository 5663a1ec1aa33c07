"""A transformer like GPT, of any size. With 12 layers of width 128 it has 2.5 million parameters."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """One layer: attention and feed-forward, each behind a norm and a residual."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """x: [1, seq, dim] -> [1, seq, dim]"""
        qkv = self.qkv(self.attention_norm(x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in qkv)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.feed_forward_norm(x))))


class Transformer(nn.Module):
    """A language model with two entry points that use the same weights."""

    def __init__(self, layers: int, dim: int, vocab_size: int = 256, max_seq_len: int = 128) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab_size, dim), nn.Embedding(max_seq_len, dim)
        self.blocks = nn.ModuleList(Block(dim, heads=4) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab_size, bias=False)
        self.register_buffer("positions", torch.arange(max_seq_len), persistent=False)

    def _body(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(self.positions[: tokens.shape[1]])
        for block in self.blocks:
            x = block(x)
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
