"""The blocks of code in the project's pages: `tests/helpers/snippets.py` says what is checked, and which comments say more.

`tests/integration/test_snippets.py` runs commands and Python, and `tests/bazel/test_snippets.py` loads Starlark.
"""

from __future__ import annotations

import configparser
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from etbuild import json_schema
from etbuild.cli.main import main
from tests.helpers.snippets import ROOT, Snippet, mistakes, snippets

MANIFEST = {
    "schema": "executorch-model/v1",
    "name": "net",
    "model": {"factory": "model:create"},
    "methods": {"forward": {"example_inputs": [{"shape": [1, 8]}]}},
}
"""What a part of a manifest is put into, unless it has these keys itself."""


def of(*languages: str) -> list[Any]:
    """The blocks in these languages that are checked here, as parameters of a test."""
    chosen = [each for each in snippets() if each.language in languages and each.verdict in ("run", "parsed")]
    return [pytest.param(each, id=each.place) for each in chosen]


def test_each_block_is_checked_or_says_why_not() -> None:
    problems = [problem for each in snippets() for problem in mistakes(each)]
    assert not problems, "\n".join(problems)


def whole_manifest(snippet: Snippet) -> str:
    """A part of a manifest, with what surrounds it."""
    part = yaml.safe_load(snippet.text)
    for key in reversed(snippet.notes["at"].split(".") if "at" in snippet.notes else []):
        part = {key: part}
    return json.dumps({**MANIFEST, **(yaml.safe_load(snippet.before) if snippet.before else {}), **part})


@pytest.mark.parametrize("snippet", of("yaml"))
def test_yaml(snippet: Snippet, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = yaml.safe_load(snippet.text)
    schema = str(data.get("schema", "")).partition("/")[0]
    if schema == "executorch-policy":
        assert json_schema.problems("policy", data) == [], snippet.place
        return
    file = tmp_path / "net.yaml"
    file.write_text(snippet.text if schema else whole_manifest(snippet))
    code = main(["validate", str(file)])
    assert code == 0, f"{snippet.place}: {capsys.readouterr().err}\nin {file.read_text()}"


@pytest.mark.parametrize("snippet", of("ini", "json"))
def test_other_data(snippet: Snippet) -> None:
    parse: Callable[[str], object] = json.loads if snippet.language == "json" else configparser.ConfigParser().read_string
    parse(snippet.text)
