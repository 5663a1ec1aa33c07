"""Errors of torch.export in words that say what its names mean."""

from __future__ import annotations

import pytest

from etbuild.export import export_methods, violated_shapes

GUARD = """\
Constraints violated (seq)! For more information, run with TORCH_LOGS="+dynamic".
  - Not all values of seq = L['input_ids'].size()[1] in the specified range seq <= 32 satisfy the generated guard \
(L['input_ids'].size()[1]*min(64, 64*L['input_ids'].size()[1])) == (64*L['input_ids'].size()[1]).

The error above occurred when calling torch.export.export. If you would like to view some more information about this \
error, and get a list of all other errors that may occur in your export call, you can replace your `export()` call \
with `draft_export()`."""


def test_a_size_has_the_name_of_its_dimension() -> None:
    assert violated_shapes.message(GUARD) == (
        "Constraints violated (seq)! - Not all values of seq in the specified range seq <= 32 satisfy the generated "
        "guard (seq*min(64, 64*seq)) == (64*seq)."
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
