"""A text encoder that several programs share."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """A transformer layer: attention and feed-forward, each behind a norm and a residual."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        """x: [1, length, dim] -> [1, length, dim]"""
        # [1, length, 3 * dim] -> three of [1, heads, length, dim / heads]
        q, k, v = self.qkv(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.mlp_norm(x))


class Backbone(nn.Module):
    """Turns token ids into one vector for each token."""

    def __init__(
        self, vocab_size: int = 256, max_length: int = 64, dim: int = 64, heads: int = 4, layers: int = 2
    ) -> None:
        super().__init__()
        self.dim = dim
        self.embedding = nn.Embedding(vocab_size, dim)
        self.positions = nn.Parameter(torch.zeros(max_length, dim))
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(dim)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: int64 [1, length] -> float32 [1, length, dim]"""
        return self.norm(self.blocks(self.embedding(tokens) + self.positions[: tokens.shape[1]]))
