"""Makes example inputs whose shape follows from a model of transformers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from etbuild.errors import BuildError, DocumentPath
from etbuild.exception_text import hints
from etbuild.foreign_errors import from_exception, wrap_errors
from etbuild.inputs.user_code import failed, package_line
from etbuild.plan.parts import ModelExample
from etbuild.surroundings.process_state import undone
from etplugins.transformers import refused_lines

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

    def convert(error: BaseException) -> BuildError:
        action = failed(f"finding the shapes of the parts of `{type(model).__name__}`", error)
        return from_exception(error, BuildError, path, action, hints(*refused_lines.about(error), package_line(error)))

    with wrap_errors(convert), undone(), _buffers_kept(model):
        found = model.example_of_part(example_plan) if hasattr(model, "example_of_part") else None
        if found is not None:
            return found
        if example_plan.of_model in _OF_ENCODERS:
            return encoder_decoder.example(model, example_plan, path)
        known = image_text if example_plan.of_model in _OF_IMAGES_AND_TEXT else single_call
        return known.example(model, example_plan, path)


@contextmanager
def _buffers_kept(model: Any) -> Iterator[None]:
    """Undoes on exit what the model assigns to its buffers, such as a longer table of positions: it has no values."""
    before = [(part._buffers, dict(part._buffers)) for part in model.modules()]
    try:
        yield
    finally:
        for buffers, kept in before:
            buffers.clear()
            buffers.update(kept)
