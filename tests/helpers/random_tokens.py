"""Inputs of language models."""

from __future__ import annotations

import torch
from torch import Tensor


def tokens(length: int, vocab_size: int = 256, seed: int = 0) -> Tensor:
    """Returns random tokens, `[1, length]` of int64."""
    return torch.randint(vocab_size, (1, length), generator=torch.Generator().manual_seed(seed))
