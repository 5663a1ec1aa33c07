"""A decoder-only language model over bytes, similar to Llama.

RMSNorm, rotary position embeddings, grouped-query attention, SwiGLU, and a KV cache in mutable buffers.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    """Sizes of the model."""

    vocab_size: int = 256
    max_seq_len: int = 128
    layers: int = 2
    dim: int = 64
    heads: int = 4
    kv_heads: int = 2
    hidden_dim: int = 192

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


def rotary_table(config: Config) -> tuple[Tensor, Tensor]:
    """Cosines and sines by position: two of float32 [max_seq_len, head_dim / 2].

    Computed in float64 and then rounded, which gives the same float32 on every processor.
    """
    half = config.head_dim // 2
    frequencies = 10000.0 ** -(torch.arange(half, dtype=torch.float64) / half)
    angles = torch.outer(torch.arange(config.max_seq_len, dtype=torch.float64), frequencies)
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding. x: [1, heads, seq, head_dim]; cos, sin: [seq, head_dim / 2]"""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Attention(nn.Module):
    """Causal grouped-query attention over everything in the cache."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.wq = nn.Linear(config.dim, config.heads * config.head_dim, bias=False)
        self.wk = nn.Linear(config.dim, config.kv_heads * config.head_dim, bias=False)
        self.wv = nn.Linear(config.dim, config.kv_heads * config.head_dim, bias=False)
        self.wo = nn.Linear(config.heads * config.head_dim, config.dim, bias=False)
        # State, not weights: it is not in the weights file. The manifest lets the program's methods share it, so that
        # `decode` continues where `prefill` stopped.
        cache = (1, config.kv_heads, config.max_seq_len, config.head_dim)
        self.register_buffer("k_cache", torch.zeros(cache), persistent=False)
        self.register_buffer("v_cache", torch.zeros(cache), persistent=False)

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x: [1, seq, dim]; positions: int64 [seq]; mask: bool [seq, max_seq_len] -> [1, seq, dim]"""
        # [1, seq, heads * head_dim] -> [1, heads, seq, head_dim]
        q, k, v = (w(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        self.k_cache[:, :, positions] = rotate(k, cos, sin)
        self.v_cache[:, :, positions] = v
        y = F.scaled_dot_product_attention(
            rotate(q, cos, sin), self.k_cache, self.v_cache, attn_mask=mask, enable_gqa=True
        )
        return self.wo(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate = nn.Linear(config.dim, config.hidden_dim, bias=False)
        self.up = nn.Linear(config.dim, config.hidden_dim, bias=False)
        self.down = nn.Linear(config.hidden_dim, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x: [1, seq, dim] -> [1, seq, dim]"""
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """One layer: attention and feed-forward, each behind a norm and a residual."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.dim, eps=1e-5)
        self.attention = Attention(config)
        self.feed_forward_norm = nn.RMSNorm(config.dim, eps=1e-5)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x: [1, seq, dim] -> [1, seq, dim]"""
        x = x + self.attention(self.attention_norm(x), positions, mask, cos, sin)
        return x + self.feed_forward(self.feed_forward_norm(x))


class TinyLM(nn.Module):
    """The language model. Its two entry points, `prefill` and `decode`, become the program's methods."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.dim)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.dim, eps=1e-5)
        self.head = nn.Linear(config.dim, config.vocab_size, bias=False)
        cos, sin = rotary_table(config)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.register_buffer("positions", torch.arange(config.max_seq_len), persistent=False)

    def prefill(self, tokens: Tensor) -> Tensor:
        """Reads a prompt from position 0 on. tokens: int64 [1, seq] -> next token's logits, float32 [1, vocab_size]"""
        return self._step(tokens, self.positions[: tokens.shape[1]])

    def decode(self, token: Tensor, position: Tensor) -> Tensor:
        """Reads one token. token: int64 [1, 1]; position: int64 [1] -> next token's logits, float32 [1, vocab_size]"""
        return self._step(token, position)

    def _step(self, tokens: Tensor, positions: Tensor) -> Tensor:
        mask = self.positions <= positions.unsqueeze(1)
        cos, sin = self.cos[positions], self.sin[positions]
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, positions, mask, cos, sin)
        return self.head(self.norm(x[:, -1]))


def create(**sizes: int) -> TinyLM:
    """The module that the manifest names as its factory; `sizes` are the fields of Config."""
    return TinyLM(Config(**sizes))
