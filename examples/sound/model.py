"""Removes noise from sound: a mask for the frequencies of a short-time Fourier transform."""

import math

import torch
from torch import Tensor, nn


class Denoiser(nn.Module):
    """Multiplies each frequency of each moment by a number between 0 and 1."""

    def __init__(self, points: int, hop: int, hidden: int) -> None:
        super().__init__()
        self.points, self.hop = points, hop
        frequencies = points // 2 + 1
        window = torch.hann_window(points, dtype=torch.float64)  # rounded once: the same bits on all processors
        self.register_buffer("window", window.float(), persistent=False)
        self.inside = nn.Conv1d(frequencies, hidden, 3, padding=1)
        self.mask = nn.Conv1d(hidden, frequencies, 1)

    def forward(self, sound: Tensor) -> Tensor:
        """sound: float32 [batch, samples] -> float32 [batch, samples]"""
        spectrum = torch.stft(sound, self.points, self.hop, window=self.window, return_complex=True)
        loudness = torch.log1p(spectrum.abs())
        mask = torch.sigmoid(self.mask(torch.relu(self.inside(loudness))))
        return torch.istft(spectrum * mask, self.points, self.hop, window=self.window, length=sound.shape[-1])


def _fill(parameter: Tensor, seed: int) -> None:
    """Evenly spread values, computed only with integers: the same bits on all processors."""
    state = torch.arange(parameter.numel()) + seed
    for _ in range(3):
        state = (state * 1103515245 + 12345) % 2**31
        state = state ^ (state >> 16)
    fan_in = max(parameter[0].numel(), 1)
    bound = 2.0 ** -math.ceil(math.log2(fan_in) / 2)
    parameter.copy_(((state // 2**7 - 2**23) / 2**23 * bound).reshape(parameter.shape))


def create(points: int = 256, hop: int = 64, hidden: int = 32) -> Denoiser:
    """The module that the manifest names as its factory."""
    model = Denoiser(points, hop, hidden)
    with torch.no_grad():
        for seed, parameter in enumerate(model.parameters()):
            _fill(parameter, seed * 1_000_003)
    return model
