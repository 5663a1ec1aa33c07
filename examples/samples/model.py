"""A small network that tells kinds of pictures apart. `train.py` has trained its weights."""

import torch
from torch import nn


class Shapes(nn.Module):
    """Convolutions and a layer that gives one number for each kind."""

    def __init__(self, kinds: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classify = nn.Linear(16 * 4 * 4, kinds)

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        """The numbers of the kinds for a picture [1, 3, 16, 16]."""
        return self.classify(self.features(picture).flatten(1))


class Half(Shapes):
    """The same network, which computes in float16."""

    def __init__(self, kinds: int) -> None:
        super().__init__(kinds)
        self.half()

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        """Takes and returns float32."""
        return super().forward(picture.half()).float()


def create(kinds: int, half: bool = False) -> nn.Module:
    """The network."""
    return Half(kinds) if half else Shapes(kinds)
