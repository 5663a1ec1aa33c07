"""A small MobileNet v3."""

from __future__ import annotations

import torch
from torch import nn


class Gate(nn.Module):
    """Squeeze and excitation: scales each channel of float32 [batch, channels, height, width] by 0 to 1."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.squeeze, self.excite = nn.Conv2d(channels, channels // 4, 1), nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the scaled input."""
        mean = nn.functional.adaptive_avg_pool2d(x, 1)
        return x * nn.functional.hardsigmoid(self.excite(self.squeeze(mean).relu()))


class Block(nn.Module):
    """An inverted residual: widen, filter each channel, gate, and narrow. With stride 1 it adds its input."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        wide = 4 * inputs
        self.adds_input = stride == 1 and inputs == outputs
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
            nn.Hardswish(),
            nn.Conv2d(wide, wide, 5, stride, padding=2, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.Hardswish(),
            Gate(wide),
            nn.Conv2d(wide, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """float32 [batch, inputs, height, width] becomes [batch, outputs, height / stride, width / stride]."""
        y = self.layers(x)
        return x + y if self.adds_input else y


class MobileNetV3(nn.Module):
    """Classifies images: float32 [batch, 3, height, width] becomes the scores of 10 classes, float32 [batch, 10]."""

    def __init__(self) -> None:
        super().__init__()
        stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, padding=1, bias=False), nn.BatchNorm2d(16), nn.Hardswish())
        self.features = nn.Sequential(stem, Block(16, 16, 1), Block(16, 24, 2), Block(24, 24, 1), Block(24, 40, 2))
        self.head = nn.Sequential(nn.Linear(40, 64), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(64, 10))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Returns the scores."""
        return self.head(self.features(image).mean(dim=(2, 3)))


def create() -> nn.Module:
    """Makes the model with random weights, and the statistics of its batch norms from random images.

    With their initial statistics, the values would shrink from layer to layer.
    """
    model = MobileNetV3()
    model.train()
    with torch.no_grad():
        for _ in range(20):
            model(torch.randn(4, 3, 64, 64))
    return model.eval()
