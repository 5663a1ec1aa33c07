"""Gives one image to a model of transformers, and returns its tokens.

The method takes an image, float [1, channels, height, width], scaled and normalized as by the processor of
transformers. `get_image_features` of a model takes the image or patches of it. The names of its parameters tell which:

- `pixel_values`: the image.
- `image_grid_thw`: patches in the order in which the model merges them, [patches, channels x frames x size x size], and
  the number of patches in time, height and width. An image is repeated for each frame of a patch.
- `spatial_shapes`: patches row by row, [1, patches, size x size x channels], the number of patches in height and width,
  and a mask with 1 for each patch that is not padding.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch

from etbuild.errors import InputError
from etplugins.transformers.families import family
from etplugins.transformers.known_values import KnownValues

_GRID, _SHAPES = "image_grid_thw", "spatial_shapes"


@dataclass(frozen=True)
class ImageTokens:
    """The tokens of one image.

    Attributes:
        tokens: The embeddings of the tokens, float [1, tokens, hidden].
        grid: The number of patches in time, height and width, int64 [1, 3]; None for a model that takes no grid.
        layers: Features of layers of the tower for layers of the decoder, each float [1, tokens, hidden].
    """

    tokens: torch.Tensor
    grid: torch.Tensor | None
    layers: list[torch.Tensor]


def encoded(model: Any, image: torch.Tensor) -> ImageTokens:
    """The tokens of an image. In an export, values that follow from the image's size become constants.

    Args:
        model: The model for images and text.
        image: Float [1, channels, height, width]. In an export, its size must be fixed.

    Raises:
        InputError: The shape of the image does not fit the model.
    """
    _check_shape(model, image)
    with KnownValues():
        inputs = _inputs(model, image)
        features, layers = _outputs(model, inputs)
        return ImageTokens(_row(features), inputs.get(_GRID), [_row(layer) for layer in layers or []])


def features(model: Any, image: torch.Tensor) -> Any:
    """What `get_image_features` of a model returns for an image. Arguments and errors are those of `encoded`. A model
    that takes no patches takes several images too."""
    with KnownValues():
        return model.get_image_features(**_inputs(model, image))


def _check_shape(model: Any, image: torch.Tensor) -> None:
    channels = _channels(model)
    if image.dim() != 4 or image.shape[:2] != (1, channels):
        message = f"an image has the shape {list(image.shape)}"
        raise InputError.at(("methods",), message, f"write [1, {channels}, HEIGHT, WIDTH]: one image")


def _row(features: Any) -> torch.Tensor:
    """The tokens of an image, [1, tokens, hidden]. `features` may be a list of tensors, [tokens, hidden] each."""
    features = torch.cat(list(features)) if isinstance(features, (list, tuple)) else features
    row: torch.Tensor = features.reshape(1, -1, features.shape[-1])
    return row


def _outputs(model: Any, inputs: dict[str, torch.Tensor]) -> tuple[Any, Any]:
    """The tokens of an image, and features for layers of the decoder; None for a model without such features."""
    if family(model.config.model_type).drops_black_images:
        hidden = model.model.vision_model(**inputs, return_dict=True).last_hidden_state
        return model.model.connector(hidden), None
    results = model.get_image_features(**inputs, return_dict=True)
    return results.pooler_output, getattr(results, "deepstack_features", None)


def _parameters(model: Any) -> set[str]:
    """The names of the parameters of `get_image_features`."""
    return set(inspect.signature(type(model).get_image_features).parameters)


def _inputs(model: Any, image: torch.Tensor) -> dict[str, torch.Tensor]:
    """The arguments of `get_image_features` for an image."""
    parameters, vision = _parameters(model), model.config.vision_config
    unit = _unit(model)
    if unit is None:
        return {"pixel_values": image}
    _check_shape(model, image)
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
    if _SHAPES in parameters:
        return {
            "pixel_values": patches.permute(0, 1, 3, 4, 2).reshape(1, rows * columns, -1),
            _SHAPES: torch.tensor([[rows, columns]]),
            "pixel_attention_mask": torch.ones((1, rows * columns), dtype=torch.int32),
        }
    frames = _frames(_merged(patches, vision.spatial_merge_size), vision.temporal_patch_size)
    return {"pixel_values": frames, _GRID: torch.tensor([[1, rows, columns]])}


def _unit(model: Any) -> int | None:
    """The number of pixels that must divide both sides of an image; None for a model that takes no patches."""
    parameters, config = _parameters(model), model.config
    if _SHAPES in parameters:
        return int(config.vision_config.patch_size * getattr(config, "downsample_factor", 1))
    if _GRID in parameters:
        return int(config.vision_config.patch_size * config.vision_config.spatial_merge_size)
    return None


def _patches(image: torch.Tensor, size: int) -> torch.Tensor:
    """The patches of an image [channels, height, width], row by row: [rows, columns, channels, size, size]."""
    channels, height, width = image.shape
    return image.reshape(channels, height // size, size, width // size, size).permute(1, 3, 0, 2, 4)


def _merged(patches: torch.Tensor, merge: int) -> torch.Tensor:
    """Patches in the order in which a model merges them: one merged square after the other.

    Returns [patches, channels, size x size].
    """
    rows, columns, channels = patches.shape[:3]
    squares = patches.reshape(rows // merge, merge, columns // merge, merge, -1).permute(0, 2, 1, 3, 4)
    return squares.reshape(rows * columns, channels, -1)


def _frames(patches: torch.Tensor, frames: int) -> torch.Tensor:
    """Patches with the image repeated in each frame: [patches, channels x frames x size x size]."""
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
    """An image with zeros, in the size of the configuration, or else in the smallest size that the model takes.

    Args:
        model: The model for images and text.
    """
    unit = _unit(model) or 0
    return torch.zeros(shape(model) or (1, _channels(model), unit, unit), dtype=model.dtype)


def _channels(model: Any) -> int:
    vision = model.config.vision_config
    channels: int = getattr(vision, "num_channels", getattr(vision, "in_channels", 3))
    return channels
