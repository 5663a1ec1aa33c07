"""Reads the size of the images that a model takes from its configuration, or from that of its image processor."""

from __future__ import annotations

from typing import Any

_DEFAULT = 224


def of_config(config: dict[str, Any]) -> tuple[int, int] | None:
    """The height and the width in a model's `config.json`; None if it does not say them.

    Args:
        config: The content of the file.
    """
    nested = config.get("vision_config")
    return _size((nested if isinstance(nested, dict) else config).get("image_size"))


def of_processor(processor: dict[str, Any]) -> tuple[int, int]:
    """The height and the width of what an image processor returns. An image that keeps its shape becomes a square.

    Args:
        processor: The content of `preprocessor_config.json`; empty if there is none.
    """
    cropped = _size(processor.get("crop_size")) if processor.get("do_center_crop") is True else None
    return cropped or _size(processor.get("size")) or (_DEFAULT, _DEFAULT)


def _size(value: object) -> tuple[int, int] | None:
    """A size in one of the forms of these files; None if it is in none of them."""
    if isinstance(value, dict):
        shortest = value.get("shortest_edge")
        return _size([value.get("height", shortest), value.get("width", shortest)])
    if isinstance(value, list):
        numbers = [each for each in value if type(each) is int and 0 < each < 1 << 31]
        return (numbers[0], numbers[1]) if len(numbers) == len(value) == 2 else None
    return _size([value, value]) if type(value) is int else None
