"""Gives a model that draws masks around points two entries, so that an image is encoded once for many points.

`encode_image(pixel_values)` returns the features of an image: a map, or several. `decode_masks(features, points,
kinds)` takes them, points as x and y, float [1, 1, points, 2], and what each is, int64 [1, 1, points]: 1 inside of the
object, 0 outside, -10 for none. It returns three masks, [1, 1, 3, rows, columns], above 0 inside, and how good each is,
[1, 1, 3].
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_map

from etbuild.errors import InputError
from etbuild.plan.parts import ModelExample
from etplugins.transformers import single_call
from etplugins.transformers.huggingface_config import PATH
from etplugins.transformers.parts import HuggingFace

_ENCODER = "get_image_embeddings"
_INPUTS = ("image_embeddings", "input_points", "input_labels")

Entries = dict[str, Callable[..., Any]]
Features: TypeAlias = torch.Tensor | list[torch.Tensor]


def add(model: Any, settings: HuggingFace) -> Entries:
    """Makes the entries.

    Args:
        model: The model.
        settings: The model in the plan.

    Returns:
        The new methods for the class of the model, by name.

    Raises:
        InputError: The class does not draw masks around points.
    """
    cls, original = type(model), type(model).forward
    parameters = inspect.signature(original).parameters
    missing = [] if hasattr(cls, _ENCODER) else [_ENCODER]
    missing += [name for name in _INPUTS if name not in parameters]
    if missing:
        message = f"`{cls.__name__}` has no `{missing[0]}`, which `task: {settings.task}` needs"
        raise InputError.at((*PATH, "task"), message, "choose a class such as SamModel, or write a factory")

    table = getattr(getattr(model, "prompt_encoder", None), "point_embed", None)
    are_indices = isinstance(table, torch.nn.Embedding)

    def encode_image(self: Any, pixel_values: torch.Tensor) -> Features:
        found: Features = getattr(self, _ENCODER)(pixel_values)
        return found

    def decode_masks(
        self: Any, features: Features, points: torch.Tensor, kinds: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        # SAM joins the kinds with others that are floats: ExecuTorch has no such operator for two dtypes.
        given = dict(zip(_INPUTS, (features, points, kinds if are_indices else kinds.to(points.dtype)), strict=True))
        found = original(self, **given, multimask_output=True, return_dict=True)
        return found.pred_masks, found.iou_scores

    return {"encode_image": encode_image, "decode_masks": decode_masks, "example_of_part": _example_of_part}


def _example_of_part(model: Any, example_plan: ModelExample) -> Features | None:
    """Zeros in the shape of the features of an image."""
    if example_plan.of_model != "encoder_outputs":
        return None
    image = single_call.example(model, example_plan.replace(of_model="image"), ("methods", "image_encoder"))
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        features = model.encode_image(mode.from_tensor(image))
    return tree_map(lambda each: torch.zeros(tuple(each.shape), dtype=each.dtype), features)
