"""Gives a model that finds in an image what a text says three entries, so that an image is encoded once for any texts.

`encode_image(pixel_values)` returns the features of each box, float [1, boxes, hidden], the boxes, [1, boxes, 4], as x
and y of the middle, width and height, from 0 to 1, and of some classes how likely a box has any object, [1, boxes].
`encode_text(input_ids)` returns the vector of a text, [1, size]. `score(features, texts)` takes the vectors of some
texts, [texts, size], and returns the `logits` of the class, [1, boxes, texts]: their sigmoid says how well each fits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses import FakeTensorMode

from etbuild.errors import InputError
from etbuild.plan.parts import ModelExample
from etplugins.transformers import image_and_text, single_call
from etplugins.transformers.huggingface_config import PATH
from etplugins.transformers.parts import HuggingFace

_PARTS, _ANY_OBJECT = ("image_embedder", "box_predictor", "class_predictor"), "objectness_predictor"

Entries = dict[str, Callable[..., Any]]


def add(model: Any, settings: HuggingFace) -> Entries:
    """Makes the entries.

    Args:
        model: The model.
        settings: The model in the plan.

    Returns:
        The new methods for the class of the model, by name.

    Raises:
        InputError: The class does not compare boxes with texts, or its texts are shorter.
    """
    missing = [each for each in _PARTS if not hasattr(model, each)]
    if missing:
        message = f"`{type(model).__name__}` has no `{missing[0]}`, which `task: {settings.task}` needs"
        raise InputError.at(
            (*PATH, "task"), message, "choose a class such as OwlViTForObjectDetection, or write a factory"
        )
    image_and_text.check_length(model, settings)

    def encode_image(self: Any, pixel_values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        places = self.image_embedder(pixel_values=pixel_values)[0]  # [1, rows, columns, hidden]
        features = places.flatten(1, 2)
        objects = (self.objectness_predictor(features),) if hasattr(self, _ANY_OBJECT) else ()
        return features, self.box_predictor(features, places), *objects

    def encode_text(self: Any, input_ids: torch.Tensor) -> torch.Tensor:
        return image_and_text.vector(self.base_model.get_text_features(input_ids=input_ids))

    def score(self: Any, features: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.class_predictor(features, texts[None])[0]
        return scores

    return {
        "encode_image": encode_image,
        "encode_text": encode_text,
        "score": score,
        "example_of_part": _example_of_part,
    }


def _example_of_part(model: Any, example_plan: ModelExample) -> torch.Tensor | None:
    """Zeros in the shape of the features of an image, or vectors of texts."""
    if example_plan.of_model != "encoder_outputs":
        return image_and_text.example_of_part(model, example_plan)
    image = single_call.example(model, example_plan.replace(of_model="image"), ("methods", "image_encoder"))
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        features = model.encode_image(mode.from_tensor(image))[0]
    return torch.zeros(tuple(features.shape), dtype=features.dtype)
