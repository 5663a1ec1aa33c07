"""Reads pictures as tensors, with Pillow."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from etbuild.errors import DocumentPath, InputError
from etplugins.samples.parts import Image

_LARGEST = 255


def reader(image: Image, path: DocumentPath) -> Callable[[Path], torch.Tensor]:
    """The function that reads a picture.

    Args:
        image: How.
        path: The place in the manifest that asks for it, for errors.

    Raises:
        InputError: Pillow is not installed.
    """
    try:
        pillow: Any = importlib.import_module("PIL.Image")
    except ImportError:
        hint = "`pip install pillow`; in Bazel, add it to the toolchain; or name a `loader` of your own"
        raise InputError.at(path, "`image` needs the package `pillow`, which is not installed", hint) from None

    def read(file: Path) -> torch.Tensor:
        with pillow.open(file) as opened:
            if opened.mode.startswith(("I", "F")):  # Pillow would cut off the values above 255
                raise ValueError(f"its pixels have more than 8 bits (`{opened.mode}`): read it by a `loader`")
            picture = opened.convert("L" if image.colors == "gray" else "RGB")
        fitted = _fitted(picture, image, pillow.Resampling.BILINEAR)
        count = len(fitted.getbands())
        pixels = torch.frombuffer(bytearray(fitted.tobytes()), dtype=torch.uint8).reshape(1, *image.size, count)
        return tensor(pixels, image)

    return read


def _fitted(picture: Any, image: Image, how: Any) -> Any:
    height, width = image.size
    if image.fit == "stretch":
        return picture.resize((width, height), how)
    scale = max(width / picture.width, height / picture.height)
    size = (max(round(picture.width * scale), width), max(round(picture.height * scale), height))
    left, top = ((size[0] - width) // 2, (size[1] - height) // 2)
    return picture.resize(size, how).crop((left, top, left + width, top + height))


def tensor(pixels: torch.Tensor, image: Image) -> torch.Tensor:
    """The input for pixels `[1, height, width, channels]` of 8 bits."""
    ordered = pixels.flip(-1) if image.colors == "bgr" else pixels
    mean, deviation = (torch.tensor(numbers, dtype=torch.float32) for numbers in (image.mean, image.deviation))
    values = (ordered.to(torch.float32) / _LARGEST - mean) / deviation
    return values if image.layout == "nhwc" else values.permute(0, 3, 1, 2).contiguous()
