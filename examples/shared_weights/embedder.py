"""Turns text into a vector, for search: texts with the same meaning have similar vectors."""

import torch.nn.functional as F
from backbone import Backbone
from torch import Tensor, nn


class Embedder(nn.Module):
    """The backbone's vectors, averaged. The head has no weights of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = Backbone()

    def embed(self, tokens: Tensor) -> Tensor:
        """tokens: int64 [1, length] -> float32 [1, dim], of length 1"""
        return F.normalize(self.backbone(tokens).mean(1), dim=-1)


def create() -> Embedder:
    """The module that the manifest names as its factory."""
    return Embedder()
