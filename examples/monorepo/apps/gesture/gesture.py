"""Recognizes the gesture of a wrist."""

from models.common.encoder import Encoder
from torch import Tensor, nn


class Gesture(nn.Module):
    """The encoder and a linear layer."""

    def __init__(self, gestures: int) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.head = nn.Linear(Encoder.dim, gestures)

    def classify(self, window: Tensor) -> Tensor:
        """window: float32 [batch, channels, time] -> probabilities, float32 [batch, gestures]"""
        return self.head(self.encoder(window)).softmax(-1)


def create(gestures: int) -> Gesture:
    """The factory that gesture.yaml names."""
    return Gesture(gestures)
