"""Gives one image to a model of transformers, and returns its tokens.

An application has an image, float [1, channels, height, width]: scaled and normalized, as the processor of transformers
makes it before it cuts it into patches. `get_image_features` of a model takes the image or its patches; the names of
its parameters tell which:

- `pixel_values`: the image.
- `image_grid_thw`: patches in the order in which the model merges them, [patches, channels x frames x size x size], and
  their number in time, height and width. An image is repeated for each frame of a patch.
- `spatial_shapes`: patches row by row, [1, patches, size x size x channels], their number in height and width, and a
  mask of those that are no padding.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch

from etbuild.errors import InputError
from etbuild.model.known_values import KnownValues

_GRID, _SHAPES = "image_grid_thw", "spatial_shapes"


@dataclass(frozen=True)
class ImageTokens:
    """The tokens of one image.

    Attributes:
        tokens: Their embeddings, float [1, tokens, hidden].
        grid: The number of patches in time, height and width, int64 [1, 3]. None for a model that takes no grid.
        layers: What the tower gives to layers of the decoder, for each of them float [1, tokens, hidden].
    """

    tokens: torch.Tensor
    grid: torch.Tensor | None
    layers: list[torch.Tensor]


def encoded(model: Any, image: torch.Tensor) -> ImageTokens:
    """The tokens of an image. What follows from its size is computed at once.

    Args:
        model: The model for images and text.
        image: Float [1, channels, height, width]. In an export, its size must be fixed.

    Raises:
        InputError: The model cannot have patches of this image.
    """
    channels = _channels(model)
    if image.dim() != 4 or image.shape[:2] != (1, channels):
        message = f"an image has the shape {list(image.shape)}"
        raise InputError.at(("methods",), message, f"write [1, {channels}, HEIGHT, WIDTH]: one image")
    with KnownValues():
        inputs = _inputs(model, image)
        found, layers = _outputs(model, inputs)
        return ImageTokens(_row(found), inputs.get(_GRID), [_row(each) for each in layers or []])


def _row(found: Any) -> torch.Tensor:
    """The tokens of an image, [1, tokens, hidden]. They may be a list of [tokens, hidden]."""
    features = torch.cat(list(found)) if isinstance(found, (list, tuple)) else found
    return features.reshape(1, -1, features.shape[-1])


def _outputs(model: Any, inputs: dict[str, torch.Tensor]) -> tuple[Any, Any]:
    """The tokens of an image, and those for layers of the decoder if there are any."""
    if model.config.model_type in ("idefics3", "smolvlm"):
        # Their `get_image_features` drops images whose values are all zero: then the number of tokens would follow from
        # the values.
        hidden = model.model.vision_model(**inputs, return_dict=True).last_hidden_state
        return model.model.connector(hidden), None
    found = model.get_image_features(**inputs, return_dict=True)
    return found.pooler_output, getattr(found, "deepstack_features", None)


def _taken(model: Any) -> set[str]:
    """The names of the parameters of `get_image_features`."""
    return set(inspect.signature(type(model).get_image_features).parameters)


def _inputs(model: Any, image: torch.Tensor) -> dict[str, torch.Tensor]:
    """What `get_image_features` takes for an image."""
    taken, vision = _taken(model), model.config.vision_config
    unit = _unit(model)
    if unit is None:
        return {"pixel_values": image}
    height, width = image.shape[-2:]
    if not isinstance(height, int) or not isinstance(width, int):
        hint = "write a method for each size, with `entry: encode_image`"
        raise InputError.at(("methods",), "an image that the model cuts into patches has a dynamic size", hint)
    if height % unit or width % unit:
        message = f"an image of {height} x {width} pixels cannot be cut into patches"
        raise InputError.at(("methods",), message, f"write a height and a width that are multiples of {unit}")
    size = vision.patch_size
    patches = _patches(image[0], size)  # [rows, columns, channels, size, size]
    rows, columns = patches.shape[:2]
    if _SHAPES in taken:
        return {
            "pixel_values": patches.permute(0, 1, 3, 4, 2).reshape(1, rows * columns, -1),
            _SHAPES: torch.tensor([[rows, columns]]),
            "pixel_attention_mask": torch.ones((1, rows * columns), dtype=torch.int32),
        }
    frames = _frames(_merged(patches, vision.spatial_merge_size), vision.temporal_patch_size)
    return {"pixel_values": frames, _GRID: torch.tensor([[1, rows, columns]])}


def _unit(model: Any) -> int | None:
    """The number of pixels that divides both sides of an image; None for a model that takes the image as it is."""
    taken, config = _taken(model), model.config
    if _SHAPES in taken:
        return int(config.vision_config.patch_size * config.downsample_factor)
    if _GRID in taken:
        return int(config.vision_config.patch_size * config.vision_config.spatial_merge_size)
    return None


def _patches(image: torch.Tensor, size: int) -> torch.Tensor:
    """The patches of an image [channels, height, width], row by row: [rows, columns, channels, size, size]."""
    channels, height, width = image.shape
    return image.reshape(channels, height // size, size, width // size, size).permute(1, 3, 0, 2, 4)


def _merged(patches: torch.Tensor, merge: int) -> torch.Tensor:
    """Patches in the order in which a model merges them: those of a square of merged ones follow each other.

    Returns [patches, channels, size x size].
    """
    rows, columns, channels = patches.shape[:3]
    squares = patches.reshape(rows // merge, merge, columns // merge, merge, -1).permute(0, 2, 1, 3, 4)
    return squares.reshape(rows * columns, channels, -1)


def _frames(patches: torch.Tensor, frames: int) -> torch.Tensor:
    """Patches that have the image in each frame: [patches, channels x frames x size x size]."""
    return patches.unsqueeze(2).expand(-1, -1, frames, -1).reshape(patches.shape[0], -1)


def shape(model: Any) -> tuple[int, int, int, int] | None:
    """The shape of an image, [1, channels, height, width]; None if the configuration does not say its size.

    Args:
        model: The model for images and text.
    """
    size = getattr(model.config.vision_config, "image_size", None)
    if size is None or _unit(model) is not None:
        return None
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    return (1, _channels(model), height, width)


def smallest(model: Any) -> torch.Tensor:
    """An image with zeros: of the size that the configuration says, or the smallest one.

    Args:
        model: The model for images and text.
    """
    unit = _unit(model) or 0
    return torch.zeros(shape(model) or (1, _channels(model), unit, unit), dtype=model.dtype)


def _channels(model: Any) -> int:
    vision = model.config.vision_config
    channels: int = getattr(vision, "num_channels", getattr(vision, "in_channels", 3))
    return channels
