"""Errors of torch.export in words that say what its names mean."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from etbuild.export import every_size, export_methods, violated_shapes

GUARD = """\
Constraints violated (seq)! For more information, run with TORCH_LOGS="+dynamic".
  - Not all values of seq = L['input_ids'].size()[1] in the specified range seq <= 32 satisfy the generated guard \
(L['input_ids'].size()[1]*min(64, 64*L['input_ids'].size()[1])) == (64*L['input_ids'].size()[1]).

The error above occurred when calling torch.export.export. If you would like to view some more information about this \
error, and get a list of all other errors that may occur in your export call, you can replace your `export()` call \
with `draft_export()`."""


def test_a_size_has_the_name_of_its_dimension() -> None:
    assert violated_shapes.message(GUARD) == (
        "the model does not take each declared size of `seq`. torch.export says: Constraints violated (seq)! - Not all "
        "values of seq in the specified range seq <= 32 satisfy the generated guard (seq*min(64, 64*seq)) == (64*seq)."
    )


@pytest.mark.parametrize(
    ("text", "legend"),
    [
        ("The size of tensor a (s70) must match the size of tensor b (u1)", "s70 u1"),
        ("expected 64*s70 + s12", "s12 s70"),
        ("bus12, model.s70, s3 and u1x are no sizes", ""),
    ],
)
def test_the_names_of_sizes_are_explained(text: str, legend: str) -> None:
    said = export_methods._message(RuntimeError(text))
    assert said.startswith(f"RuntimeError: {text}")
    assert said.count(" stands for a ") == len(legend.split())
    assert all(f"`{name}` stands for a " in said for name in legend.split())


def _error_of_a_quantized_method(error: Exception) -> str:
    job = SimpleNamespace(finder=SimpleNamespace(name_of=lambda file: None))
    prepared: Any = SimpleNamespace(job=job, path=("methods", "forward"))
    return str(export_methods._quantized_error(error, prepared))


def test_a_quantized_method_gets_the_words_of_the_first_export() -> None:
    said = _error_of_a_quantized_method(ValueError(f"{GUARD}\n\nSuggested fixes:\n  seq = Dim('seq', min=3, max=32)\n"))
    assert said.startswith("methods.forward.quantize.pt2e: exporting the quantized method failed: ")
    assert "TORCH_LOGS" not in said
    assert "    the model fixes or narrows a dynamic dimension: write {dim: seq, min: 3, max: 32}\n" in said
    assert "make the range of a dimension smaller" in _error_of_a_quantized_method(every_size.TooManySizes())
