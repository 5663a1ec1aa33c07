"""Computes how similar two movements are."""

import torch.nn.functional as F
from models.common.encoder import Encoder
from torch import Tensor, nn


class Fitness(nn.Module):
    """The encoder's vectors, of length 1. It has no weights of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()

    def embed(self, window: Tensor) -> Tensor:
        """window: float32 [batch, channels, time] -> float32 [batch, dim]"""
        return F.normalize(self.encoder(window), dim=-1)

    def compare(self, vector: Tensor, other: Tensor) -> Tensor:
        """Two vectors, float32 [batch, dim] -> the cosine of the angle between them, float32 [batch]"""
        return (vector * other).sum(-1)


def create() -> Fitness:
    """The factory that fitness.yaml names."""
    return Fitness()
