"""Says how well two texts fit, from their counts of words."""

import torch
import torch.nn.functional as F
from models.common.filled import filled
from torch import Tensor, nn


class Pair(nn.Module):
    """One layer for both texts."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = filled(nn.Linear(32, 8), seed=3)

    def embed(self, counts: Tensor) -> Tensor:
        """counts: float32 [1, 32] -> float32 [1, 8], of length 1"""
        return F.normalize(self.encoder(counts), dim=-1)

    def score(self, counts: Tensor, vector: Tensor) -> Tensor:
        """counts: float32 [1, 32], vector: float32 [1, 8] -> float32 [1]"""
        return torch.sigmoid((self.embed(counts) * vector).sum(-1))


def create() -> Pair:
    """The factory that pair.yaml names."""
    return Pair()
