"""Makes example inputs whose shape follows from a model of transformers."""

from __future__ import annotations

from typing import Any

from etbuild.errors import DocumentPath
from etbuild.inputs.user_code import wrap_user_error
from etbuild.plan.parts import ModelExample

_OF_ENCODERS, _OF_IMAGES_AND_TEXT = ("encoder_outputs", "features"), ("embeddings", "pixel_values")


def example(model: Any, example_plan: ModelExample, path: DocumentPath) -> Any:
    """An example input with zeros. A model whose parts are methods may have a method `example_of_part`, which returns
    None for inputs that it does not know.

    Args:
        model: The model.
        example_plan: The input in the plan.
        path: The document path of the input.

    Raises:
        InputError: Neither the configuration nor the manifest says the shape of the input.
    """
    from etplugins.transformers import encoder_decoder, image_text, single_call  # these import transformers

    if hasattr(model, "example_of_part"):
        with wrap_user_error(path, f"finding the shapes of the parts of `{type(model).__name__}`"):
            found = model.example_of_part(example_plan)
        if found is not None:
            return found
    if example_plan.of_model in _OF_ENCODERS:
        return encoder_decoder.example(model, example_plan, path)
    of_text = example_plan.of_model in _OF_IMAGES_AND_TEXT
    return image_text.example(model, example_plan, path) if of_text else single_call.example(model, example_plan, path)
