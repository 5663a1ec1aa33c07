"""Reads recordings as tensors: `.wav` files with Python's own module, others with the package `soundfile`."""

from __future__ import annotations

import importlib
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from etbuild.errors import counted
from etplugins.samples.parts import Sound

_OF_8_BITS = 128  # silence in a file of 8 bits, whose numbers have no sign


def reader(sound: Sound) -> Callable[[Path], torch.Tensor]:
    """The function that reads a recording. It raises ValueError for a file that does not fit."""

    def read(file: Path) -> torch.Tensor:
        values, rate = _of_wave(file) if file.suffix == ".wav" else _of_library(file)
        if rate != sound.rate:
            raise ValueError(f"it has {rate} samples per second, not {sound.rate}")
        if values.shape[0] != sound.channels:
            raise ValueError(f"it has {counted(values.shape[0], 'channel')}, not {sound.channels}")
        if sound.length is None:
            return values
        missing = max(sound.length - values.shape[1], 0)
        return torch.nn.functional.pad(values, (0, missing))[:, : sound.length].contiguous()

    return read


def _of_wave(file: Path) -> tuple[torch.Tensor, int]:
    try:
        with wave.open(str(file), "rb") as opened:
            channels, width, rate = opened.getnchannels(), opened.getsampwidth(), opened.getframerate()
            content = opened.readframes(opened.getnframes())
    except wave.Error as error:
        raise ValueError(f"{error}; Python reads WAV files of whole numbers") from None
    values = _whole_numbers(content, width).reshape(-1, channels)
    return (values.to(torch.float64) / 2 ** (8 * width - 1)).to(torch.float32).T.contiguous(), rate


def _whole_numbers(content: bytes, width: int) -> torch.Tensor:
    """Numbers with the lowest byte first."""
    parts = torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(-1, width).to(torch.int64)
    if width == 1:
        return parts[:, 0] - _OF_8_BITS
    number = sum((parts[:, index] << 8 * index for index in range(width)), torch.zeros(len(parts), dtype=torch.int64))
    return torch.where(parts[:, -1] > 127, number - 2 ** (8 * width), number)


def _of_library(file: Path) -> tuple[torch.Tensor, int]:
    try:
        library: Any = importlib.import_module("soundfile")
    except ImportError:
        raise ValueError(
            "other files than .wav need the package `soundfile`: `pip install soundfile`; in Bazel, add it to the "
            "toolchain"
        ) from None
    values, rate = library.read(str(file), dtype="float32", always_2d=True)
    return torch.from_numpy(values).T.contiguous(), rate
