"""An image with twice the rows and columns, as EDSR makes it."""

from __future__ import annotations

import torch
from torch import nn


class Block(nn.Module):
    """Two convolutions beside a shortcut, without norms."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Returns the image with what the body adds to it."""
        return image + self.body(image)


class SuperResolution(nn.Module):
    """Enlarges images: float32 [batch, 3, rows, columns] becomes float32 [batch, 3, 2 * rows, 2 * columns].

    Args:
        width: The number of channels inside.
        blocks: The number of blocks.
    """

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, width, 3, padding=1)
        self.body = nn.Sequential(*(Block(width) for _ in range(blocks)), nn.Conv2d(width, width, 3, padding=1))
        self.tail = nn.Sequential(
            nn.Conv2d(width, 4 * width, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(width, 3, 3, padding=1)
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Returns the large image."""
        features = self.head(image)
        return self.tail(features + self.body(features))
