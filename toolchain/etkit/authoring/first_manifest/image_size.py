"""Reads from the configuration of a model, or of its image processor, the size of the images that the model takes."""

from __future__ import annotations

import math
from typing import Any

from etkit.authoring.first_manifest.files import positive

_DEFAULT, _CHANNELS = 224, 3
_DEFAULT_OF_PATCHES = 448


def of_config(config: dict[str, Any]) -> tuple[int, int] | None:
    """The height and the width in a model's `config.json`; None if it does not say them.

    Args:
        config: The content of the file.
    """
    nested = config.get("vision_config")
    return _size((nested if isinstance(nested, dict) else config).get("image_size"))


def channels(config: dict[str, Any]) -> int:
    """The channels of an image, which the configuration of a tower or of a backbone may say.

    Args:
        config: The content of `config.json`.
    """
    nested = [each for key in ("vision_config", "backbone_config") if isinstance(each := config.get(key), dict)]
    return positive(*(each.get("num_channels") for each in (*nested, config))) or _CHANNELS


def of_backbone(config: dict[str, Any]) -> tuple[int, int] | None:
    """The height and the width in the configuration of a model's backbone; None if there is none that says them.

    Args:
        config: The content of `config.json`.
    """
    nested = config.get("backbone_config")
    return _size(nested.get("image_size")) if isinstance(nested, dict) else None


def of_processor(processor: dict[str, Any]) -> tuple[int, int]:
    """The height and the width of the images that a processor returns. If it keeps their shape, those of a square.

    Args:
        processor: The content of `preprocessor_config.json`; empty if there is none.
    """
    cropped = _size(processor.get("crop_size")) if processor.get("do_center_crop") is True else None
    return cropped or _size(processor.get("size")) or (_DEFAULT, _DEFAULT)


def of_patches(config: dict[str, Any], processor: dict[str, Any], longest: int) -> int | None:
    """The side of a square image for a model that makes one token from each square of merged patches. None for a model
    that takes images of one size.

    Args:
        config: The content of `config.json`.
        processor: The content of `preprocessor_config.json`; empty if there is none.
        longest: The tokens of a text with its image. The image has at most half of them.
    """
    vision = config["vision_config"]
    patch = positive(vision.get("patch_size"), processor.get("encoder_patch_size"), processor.get("patch_size"))
    merged = positive(
        vision.get("spatial_merge_size"),
        config.get("downsample_factor"),
        processor.get("merge_size"),
        processor.get("downsample_factor"),
    )
    if patch is None or merged is None:
        return None
    unit, side = patch * merged, positive(processor.get("tile_size")) or _DEFAULT_OF_PATCHES
    return unit * max(1, min(side // unit, math.isqrt(longest // 2)))


def _size(value: object) -> tuple[int, int] | None:
    """A size in one of the forms of these files; None if it is in none of them."""
    if isinstance(value, dict):
        shortest = value.get("shortest_edge")
        return _size([value.get("height", shortest), value.get("width", shortest)])
    if isinstance(value, list):
        height, width = map(positive, value) if len(value) == 2 else (None, None)
        return (height, width) if height and width else None
    return _size([value, value]) if type(value) is int else None
