"""The code that the programs share: an encoder of motion sensor windows."""

from torch import Tensor, nn


class Encoder(nn.Module):
    """A stack of strided convolutions over time, and the mean of their outputs."""

    channels = 6  # three axes of the accelerometer and three of the gyroscope
    dim = 32

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(self.channels, 16, 5, stride=2),
            nn.ReLU(),
            nn.Conv1d(16, self.dim, 5, stride=2),
            nn.ReLU(),
        )

    def forward(self, window: Tensor) -> Tensor:
        """window: float32 [batch, channels, time] -> float32 [batch, dim]"""
        return self.layers(window).mean(-1)
