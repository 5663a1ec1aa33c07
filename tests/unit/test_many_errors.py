"""The work for a manifest grows linearly with its number of errors. It is counted in function calls, which do not
depend on the load of the machine."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import pytest

from etbuild.cli import main
from etbuild.errors import InputError
from etbuild.manifest import validate

HEAD = "schema: executorch-model/v1\nname: m\nmodel: {factory: 'm:c'}\n"
METHOD = "methods:\n  forward:\n    example_inputs: [{shape: [1]}]\n"
MANY_METHODS = HEAD + "methods:\n" + "".join(f"  m{number}: {{example_inputs: [{{}}]}}\n" for number in range(400))

MOST_CALLS = 3000  # for one error

CASES = {
    "unknown backends": (HEAD + METHOD + "    partitioners:\n", "      - x{}\n"),
    "backends with a typing error": (HEAD + METHOD + "    partitioners:\n", "      - xnnpac{}\n"),
    "backends with unknown options": (
        HEAD + METHOD + "    partitioners:\n",
        "      - {{backend: coreml, options: {{x{}: 1}}}}\n",
    ),
    "unknown keys": (HEAD + METHOD, "key{}: 1\n"),
    "methods of another type": (HEAD + "methods:\n", "  m{}: 1\n"),
    "partitioners of unknown methods": (MANY_METHODS + "defaults:\n  partitioners:\n", "    n{}: []\n"),
    "checks of unknown methods": (MANY_METHODS + "checks:\n  max_memory_bytes:\n", "    n{}: 1\n"),
    "shapes of unknown inputs": (HEAD + METHOD + "    dynamic_kwargs_shapes:\n", "      n{}: null\n"),
    "unknown types": (HEAD + "methods:\n  forward:\n    example_inputs:\n", "      - {{shape: [1], dtype: float{}}}\n"),
    "lists of several types": (HEAD + METHOD + "custom_ops:\n  modules:\n", "    - [{0}]\n    - a{0}\n"),
    "references to unknown parameters": (
        HEAD
        + METHOD
        + "parameters:\n"
        + "".join(f"  p{n}: {{type: int, default: 1}}\n" for n in range(200))
        + "checks:\n",
        "  x{}: {{parameter: q}}\n",
    ),
    "keys that a variant cannot remove": (MANY_METHODS + "variants:\n  a:\n    methods:\n", "      n{}: null\n"),
    "sizes derived from unknown ones": (
        HEAD + "methods:\n  forward:\n    example_inputs: [{factory: 'm:x'}]\n    dynamic_shapes:\n      -\n",
        "        - {{dim: 2*n{}}}\n",
    ),
    "patterns of several tags": (HEAD + METHOD + "named_data:\n", "  t{}: {{parameters: [x]}}\n"),
}


def work(path: Path, text: str) -> int:
    """Returns the number of function calls that it takes to find the problems of a manifest."""
    path.write_text(text)
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        with pytest.raises(InputError):
            validate.load_each(path)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize(("head", "line"), CASES.values(), ids=CASES.keys())
def test_work_grows_with_the_number_of_errors(tmp_path: Path, head: str, line: str) -> None:
    counts = (2, 60, 120, 240)  # the first run also finds packages and compiles patterns
    _, some, twice, four_times = (
        work(tmp_path / "m.yaml", head + "".join(line.format(1000 * count + number) for number in range(count)))
        for count in counts
    )
    assert four_times - twice < 3 * (twice - some), (some, twice, four_times)  # quadratic work would give 4 times
    assert four_times - twice < 120 * MOST_CALLS


def test_many_errors_of_a_kind_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(HEAD + METHOD + "    partitioners:\n" + "".join(f"      - x{number}\n" for number in range(1000)))
    assert main.main(["validate", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.count("unknown backend") == 10
    assert f"{path}:18:9: methods.forward.partitioners[10]: 990 more such problems" in said
    assert said.endswith("1000 errors\n")
