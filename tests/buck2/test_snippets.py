"""Evaluates the Starlark for Buck2 in the project's pages. `tests/helpers/snippets.py` collects it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.buck2.evaluation import REPOSITORY, Buck2
from tests.helpers.snippets import Snippet, snippets, starlark_file

FOUND = [each for each in snippets() if each.language == "starlark" and starlark_file(each) == "BUCK"]


@pytest.mark.parametrize("snippet", [pytest.param(each, id=each.place) for each in FOUND])
def test_a_buck_file(snippet: Snippet, tmp_path: Path) -> None:
    """It is the file of the toolchain, or of a package beside the toolchain of examples/buck2."""
    (tmp_path / "BUCK").write_text(snippet.text)
    for name in re.findall(r'"([\w.]+\.(?:json|pex|py|safetensors|yaml))"', snippet.text):
        (tmp_path / name).touch()
    toolchain = "executorch_toolchain(" in snippet.text
    buck = Buck2({})
    buck.build_file(REPOSITORY / "toolchain/BUCK", "toolchain", "rules_executorch")
    buck.build_file(tmp_path / "BUCK" if toolchain else REPOSITORY / "examples/buck2/toolchains/BUCK", "", "toolchains")
    if not toolchain:
        buck.build_file(tmp_path / "BUCK", "net")
    found = buck.analyze()
    assert toolchain or found["actions"], snippet.place
