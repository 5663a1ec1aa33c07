"""Scores of a table's row: each column becomes a token, and a transformer looks at all of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Tabular(nn.Module):
    """A transformer over columns.

    Args:
        sizes: How many categories each column of categories has.
        numbers: How many columns have numbers.
        width: The size of a token.
        classes: How many scores a row has.
    """

    def __init__(self, sizes: list[int], numbers: int, width: int, classes: int) -> None:
        super().__init__()
        self.categories = nn.ModuleList(nn.Embedding(size, width) for size in sizes)
        self.scales = nn.Parameter(torch.randn(numbers, width))
        self.offsets = nn.Parameter(torch.randn(numbers, width))
        self.row = nn.Parameter(torch.randn(1, 1, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, categories: Tensor, numbers: Tensor) -> Tensor:
        """categories: int64 [rows, columns]; numbers: float32 [rows, columns] -> scores, float32 [rows, classes]"""
        named = [table(column) for table, column in zip(self.categories, categories.unbind(1), strict=True)]
        measured = numbers.unsqueeze(-1) * self.scales + self.offsets
        row = self.row.expand(len(numbers), 1, -1)
        return self.head(self.layers(torch.cat([row, torch.stack(named, 1), measured], 1))[:, 0])
