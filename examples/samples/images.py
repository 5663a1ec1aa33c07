"""Reads pictures, without a package: a PPM file is a header and the bytes of its pixels."""

from pathlib import Path

import torch


def load(path: Path) -> torch.Tensor:
    """A picture as `[1, 3, height, width]`, with numbers from 0 to 1."""
    _, size, _, pixels = path.read_bytes().split(b"\n", 3)
    width, height = map(int, size.split())
    values = torch.frombuffer(bytearray(pixels), dtype=torch.uint8).reshape(1, height, width, 3)
    return values.permute(0, 3, 1, 2).to(torch.float32).contiguous() / 255
