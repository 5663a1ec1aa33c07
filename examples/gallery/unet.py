"""A small U-Net."""

from __future__ import annotations

import torch
from torch import nn


def block(inputs: int, outputs: int) -> nn.Sequential:
    """Two convolutions. float32 [batch, inputs, height, width] becomes [batch, outputs, height, width]."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.GroupNorm(4, outputs),
        nn.SiLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.SiLU(),
    )


class UNet(nn.Module):
    """Segments images: float32 [batch, 3, height, width] becomes [batch, 5, height, width]. Sizes: multiples of 4."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.middle = block(3, 8), block(8, 16), block(16, 32)
        self.raise2, self.up2 = nn.ConvTranspose2d(32, 16, 2, stride=2), block(32, 16)
        self.raise1, self.up1 = nn.ConvTranspose2d(16, 8, 2, stride=2), block(16, 8)
        self.head = nn.Conv2d(8, 5, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Returns the scores of each pixel."""
        first = self.down1(image)
        second = self.down2(nn.functional.max_pool2d(first, 2))
        middle = self.middle(nn.functional.max_pool2d(second, 2))
        up = self.up2(torch.cat([self.raise2(middle), second], dim=1))
        return self.head(self.up1(torch.cat([self.raise1(up), first], dim=1)))


def create() -> nn.Module:
    """Makes the U-Net with random weights."""
    return UNet()
