"""A keyword spotter: finds which of several words, if any, is in a second of sound."""

from torch import Tensor, nn


class Spotter(nn.Module):
    """Layers over a spectrogram, of 16 bands in 16 slices of time; the last of them names the word."""

    def __init__(self, words: int, dim: int = 256) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(256, dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU())
        self.head = nn.Linear(dim, words)

    def embed(self, spectrogram: Tensor) -> Tensor:
        """spectrogram: float32 [batch, 256] -> the input of the last layer, float32 [batch, dim]"""
        return self.layers(spectrogram)

    def classify(self, spectrogram: Tensor) -> Tensor:
        """spectrogram: float32 [batch, 256] -> scores, float32 [batch, words]"""
        return self.head(self.layers(spectrogram))


def create(words: int) -> Spotter:
    """The module that the manifests name as its factory."""
    return Spotter(words)
