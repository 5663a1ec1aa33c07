"""Gives a model with a tower for images and one for texts three entries, for zero-shot classification and search.

`encode_image(pixel_values)` and `encode_text(input_ids)` return vectors of the length 1, float [1, size]. `score(image,
texts)` takes the vector of an image and those of some texts, [texts, size], and returns the `logits_per_image` of the
class, [1, texts]: their softmax or sigmoid says how well each text fits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses import FakeTensorMode

from etbuild.errors import InputError
from etbuild.plan.parts import ModelExample
from etplugins.transformers import image_inputs
from etplugins.transformers.huggingface_config import PATH
from etplugins.transformers.parts import HuggingFace

_TOWERS = ("get_image_features", "get_text_features")
_SCALE, _BIAS = "logit_scale", "logit_bias"

Entries = dict[str, Callable[..., torch.Tensor | None]]


def add(model: Any, settings: HuggingFace) -> Entries:
    """Makes the entries.

    Args:
        model: The model.
        settings: The model in the plan.

    Returns:
        The new methods for the class of the model, by name.

    Raises:
        InputError: The model has no two towers with a scale for their products, or its texts are shorter.
    """
    name = type(model).__name__
    missing = [each for each in (*_TOWERS, _SCALE) if not hasattr(model, each)]
    if missing:
        message = f"`{name}` has no `{missing[0]}`, which `task: {settings.task}` needs"
        hint = "choose a class with a tower for images and one for texts, such as CLIPModel; or write a factory"
        raise InputError.at((*PATH, "task"), message, hint)
    check_length(model, settings)

    def encode_image(self: Any, pixel_values: torch.Tensor) -> torch.Tensor:
        return vector(image_inputs.features(self, pixel_values))

    def encode_text(self: Any, input_ids: torch.Tensor) -> torch.Tensor:
        return vector(self.get_text_features(input_ids=input_ids))

    def score(self: Any, image: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = torch.matmul(texts, image.t()) * getattr(self, _SCALE).exp()
        return (scores + getattr(self, _BIAS) if hasattr(self, _BIAS) else scores).t()

    return {
        "encode_image": encode_image,
        "encode_text": encode_text,
        "score": score,
        "example_of_part": example_of_part,
    }


def check_length(model: Any, settings: HuggingFace) -> None:
    """Raises InputError if the texts of a manifest are longer than those that the tower for texts takes."""
    name = type(model).__name__
    limit = getattr(getattr(model.config, "text_config", None), "max_position_embeddings", None)
    if limit is not None and settings.max_source_length is not None and settings.max_source_length > limit:
        message = f"max_source_length {settings.max_source_length} is more than the {limit} tokens that `{name}` takes"
        raise InputError.at((*PATH, "max_source_length"), message, f"write {limit} or less")


def vector(features: Any) -> torch.Tensor:
    """The vector of an image or a text, divided by its length. Classes return it, or an output that has it."""
    vector: torch.Tensor = features if isinstance(features, torch.Tensor) else features.pooler_output
    return vector / vector.norm(p=2, dim=-1, keepdim=True)


def example_of_part(model: Any, example_plan: ModelExample) -> torch.Tensor | None:
    """Vectors of texts, as many as the length says."""
    if example_plan.of_model != "embeddings":
        return None
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        size = model.encode_text(mode.from_tensor(torch.ones((1, 2), dtype=torch.int64))).shape[-1]
    return torch.full((example_plan.length or 1, size), float(size) ** -0.5, dtype=model.dtype)
