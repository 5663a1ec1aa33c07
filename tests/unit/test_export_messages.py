"""Errors of torch.export in words that say what its names mean."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from etbuild.export import export_errors, export_methods, size_conditions
from etbuild.export.size_conditions import SizeConditions
from etplugins.transformers import refused_lines

GUARD = """\
Constraints violated (seq)! For more information, run with TORCH_LOGS="+dynamic".
  - Not all values of seq = L['input_ids'].size()[1] in the specified range seq <= 32 satisfy the generated guard \
(L['input_ids'].size()[1]*min(64, 64*L['input_ids'].size()[1])) == (64*L['input_ids'].size()[1]).

The error above occurred when calling torch.export.export. If you would like to view some more information about this \
error, and get a list of all other errors that may occur in your export call, you can replace your `export()` call \
with `draft_export()`."""


def test_a_size_has_the_name_of_its_dimension() -> None:
    assert export_errors._violation(GUARD) == (
        "torch.export fixes or narrows `seq`. It says: Constraints violated (seq)! - Not all values of seq in "
        "the specified range seq <= 32 satisfy the generated guard (seq*min(64, 64*seq)) == (64*seq)."
    )


def _refused(*guards: str, suggested: str = "") -> str:
    """A message of torch.export about the size `n`: of the guards, and of the range that torch suggests."""
    size = "L['x'].size()[0]"
    lines = "".join(
        f"  - Not all values of n = {size} in the specified range {declared} satisfy the generated guard {guard}\n"
        for declared, guard in (each.replace("SIZE", size).split(": ") for each in guards)
    )
    return f"Constraints violated (n)! Told.\n{lines}" + (f"Suggested fixes:\n  {suggested}\n" if suggested else "")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (
            _refused(
                "n <= 800: ((-2) + SIZE) != 1.",
                "n <= 800: 3 <= SIZE and SIZE <= 800",
                suggested="n = Dim('n', min=3, max=800)",
            ),
            "write {dim: n, min: 4, max: 800}",
        ),
        (_refused("3 <= n <= 800: ((-2) + SIZE) != 1."), "write {dim: n, min: 4, max: 800}"),
        (_refused("n <= 400: (1 + (((-1) + SIZE) // 2)) != 1."), "write {dim: n, min: 3, max: 400}"),
        (_refused("5 <= n <= 800: SIZE <= 64", suggested="n = Dim('n', max=64)"), "write {dim: n, min: 5, max: 64}"),
        (_refused("2 <= n: SIZE != 7."), "write {dim: n, min: 8}"),
        (
            _refused(
                "n <= 131072: 10 <= SIZE",
                "n <= 131072: SIZE <= 100000",
                suggested="n = Dim('n', min=10, max=100000)",
            ),
            "write {dim: n, min: 10, max: 100000}",
        ),
        (_refused("n <= 8: min(3, SIZE) == 3."), "write {dim: n, min: 3, max: 8}"),
        (
            _refused("2 <= n <= 8: SIZE <= L['y'].size()[0]", suggested="n = Dim('n', max=4)"),
            "write {dim: n, max: 4}",
        ),
        (_refused("2 <= n <= 80: (8*SIZE) % 32 == 0.", suggested="n = 4*_n"), "write {dim: n, multiple_of: 4}"),
        (
            _refused("2 <= n <= 80: open('a') != 0."),
            "write a smaller range, a `multiple_of` or `null`, or change the model",
        ),
    ],
)
def test_the_range_that_is_proposed_holds_for_all_guards(text: str, hint: str) -> None:
    assert export_errors._shapes_to_write(text) == hint


@pytest.mark.parametrize(
    ("text", "legend"),
    [
        ("The size of tensor a (s70) must match the size of tensor b (u1)", "s70 u1"),
        ("expected 64*s70 + s12", "s12 s70"),
        ("bus12, model.s70, s3 and u1x are no sizes", ""),
    ],
)
def test_the_names_of_sizes_are_explained(text: str, legend: str) -> None:
    said = export_errors.said_by(RuntimeError(text))
    assert said.startswith(f"RuntimeError: {text}")
    assert said.count(" stands for a ") == len(legend.split())
    assert all(f"`{name}` stands for a " in said for name in legend.split())


def _error_of_a_quantized_method(error: Exception) -> str:
    prepared: Any = SimpleNamespace(path=("methods", "forward"))
    return str(export_methods._quantized_error(error, prepared, SizeConditions()))


def test_a_quantized_method_gets_the_words_of_the_first_export() -> None:
    said = _error_of_a_quantized_method(ValueError(f"{GUARD}\n\nSuggested fixes:\n  seq = Dim('seq', min=3, max=32)\n"))
    assert said.startswith("methods.forward.quantize.pt2e: exporting the quantized method failed: ")
    assert "TORCH_LOGS" not in said
    assert "    write {dim: seq, min: 3, max: 32}\n" in said
    assert "make the range of a dimension smaller" in _error_of_a_quantized_method(size_conditions.TooManySizes())


LIBRARY = """\
import math

class Config:
    experts = 4

    def to_dict(self):
        return {"fraction": 1.5, "capacity": 64, "experts": 4, "sizes": [2]}

class Layer:
    def __init__(self):
        self.config, self.fraction, self.capacity, self.sizes = Config(), 1.5, 64, [2]

    def of_statement(self, tokens):
        return tokens / (self.config.experts - self.config.experts)

    def of_assignment(self, tokens):
        if self.fraction > 0:
            limit = math.ceil(self.fraction * tokens)
        return [tokens, limit / 0]

    def of_condition(self, tokens):
        if tokens / 0 > self.capacity:
            return tokens

    def of_no_key(self, tokens):
        return tokens / 0 + len(self.sizes)
"""


@pytest.mark.parametrize(
    ("function", "line", "keys"),
    [
        ("of_statement", "return tokens / (self.config.experts - self.config.experts)", "`experts: 4`"),
        ("of_assignment", "return [tokens, limit / 0]", "`fraction: 1.5`"),
        ("of_condition", "tokens / 0 > self.capacity", "`capacity: 64`"),
        ("of_no_key", "return tokens / 0 + len(self.sizes)", None),
    ],
)
def test_a_line_of_the_library_is_shown_with_the_keys_that_it_follows_from(
    function: str, line: str, keys: str | None, tmp_path: Path
) -> None:
    def raised(package: str) -> BaseException:
        names: dict[str, Any] = {"__name__": f"{package}.models.made"}
        exec(compile(LIBRARY, str(file), "exec"), names)
        with pytest.raises(ZeroDivisionError) as caught:
            getattr(names["Layer"](), function)(3)
        return caught.value

    file = tmp_path / "modeling_made.py"
    file.write_text(LIBRARY)
    said, why, of_keys = refused_lines.about(raised("transformers"))
    assert said == f"the line is `{line}`"
    assert why is None
    assert of_keys is None if keys is None else str(of_keys).startswith(f"it follows from {keys} of the configuration")
    assert not refused_lines.about(raised("other"))


def test_a_line_that_needs_the_value_of_a_tensor_says_so(tmp_path: Path) -> None:
    class GuardOnDataDependentSymNode(Exception):
        pass

    file = tmp_path / "modeling_made.py"
    file.write_text("def forward(error):\n    raise error\n")
    names: dict[str, Any] = {"__name__": "transformers.models.made"}
    exec(compile(file.read_text(), str(file), "exec"), names)
    with pytest.raises(GuardOnDataDependentSymNode) as caught:
        names["forward"](GuardOnDataDependentSymNode("Could not guard"))
    said = "the value of a tensor decides there, and an export does not know it"
    assert refused_lines.about(caught.value) == ("the line is `raise error`", said, None)
