"""A tagger of words."""

from __future__ import annotations

import torch
from torch import nn


class Tagger(nn.Module):
    """Tags words: int64 [batch, length] becomes the scores of 7 tags, float32 [batch, length, 7]."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(256, 32)
        self.lstm = nn.LSTM(32, 24, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(48, 7)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Returns the scores of each word's tags."""
        states, _ = self.lstm(self.words(words))
        return self.head(states)


def create() -> nn.Module:
    """Makes the tagger with random weights."""
    return Tagger()
