"""A keyword spotter for microcontrollers: convolutions over a second of sound, as 49 slices of 10 coefficients."""

import torch
from torch import Tensor, nn


def block(channels: int) -> nn.Sequential:
    """A depthwise convolution, and one that mixes the channels."""
    return nn.Sequential(
        nn.Conv2d(channels, channels, 3, padding=1, groups=channels),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 1),
        nn.ReLU(),
    )


class Spotter(nn.Module):
    """Finds which of several words is in a sound."""

    def __init__(self, words: int, channels: int, blocks: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, channels, (10, 4), stride=2, padding=(5, 1)), nn.ReLU())
        self.blocks = nn.Sequential(*(block(channels) for _ in range(blocks)))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(channels, words)

    def forward(self, sound: Tensor) -> Tensor:
        """sound: float32 [batch, 1, 49, 10] -> scores, float32 [batch, words]"""
        return self.head(self.pool(self.blocks(self.first(sound))).flatten(1))


def create(words: int, channels: int = 16, blocks: int = 2) -> Spotter:
    """The module that the manifest names as its factory."""
    return Spotter(words, channels, blocks)


def recordings(count: int = 16) -> list[tuple[Tensor]]:
    """Sounds to calibrate on. An application has recordings here."""
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn((1, 1, 49, 10), generator=generator),) for _ in range(count)]


def recording() -> Tensor:
    """The sound that the method is exported with."""
    return recordings(1)[0][0]
