"""The list of phrases that must not come back, in tools/check_phrases.py."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "check_phrases.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_phrases", TOOL)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("It reads weights alone.", "alone"),
        ("Several entries, of which none matches", "of which none"),
        ("the whole road on this machine", "the whole road"),
        ("a release that is none of those", "is none"),
        ("an error that a user can mend", "mend"),
        ("A hit is not believed.", "is not believed"),
        ("inputs: What may be read.\n", "What may be read."),
        ("duplicates take 8 bytes, at most 0 are allowed", "at most 0 are allowed"),
        ("`decode` goes on where `prefill` stopped", "goes on where"),
        ("What it looks at no one knows", "no one knows"),
        ("weights lie in named data", "lie in"),
        ("and its packages besides.", "besides"),
        ("# where the buffer\n# lies in memory", "lies in"),
        ("the error goes\n    on where it was", "goes on where"),
    ],
)
def test_a_phrase_is_found(tool: ModuleType, text: str, phrase: str) -> None:
    assert phrase in [finding.text.replace("# ", "") for finding in tool.findings(text)]


@pytest.mark.parametrize(
    "text",
    [
        "Other files are left alone.",
        "Missing if there are none.",
        "an amendment",
        "besides torch",
        "it passes over HTTP",
    ],
)
def test_plain_words_are_not_found(tool: ModuleType, text: str) -> None:
    assert tool.findings(text) == []


def test_quoted_output_in_a_document_does_not_count(tool: ModuleType) -> None:
    document = "Prints\n\n    weights alone\n\n```\nweights alone\n```\nand weights alone\n"
    assert tool.findings(tool.without_code(document)) == [(8, "alone", "only")]


def test_the_name_of_a_test_counts_as_a_sentence(tool: ModuleType) -> None:
    source = "import os\n\n\ndef test_it_reads_weights_alone() -> None:\n    left_alone = 1\n"
    assert tool.findings(tool.with_test_names_as_words(source)) == [(4, "alone", "only")]


def test_the_tool_names_the_place_and_what_to_write(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("One line.\nweights alone\n")
    command = [sys.executable, str(TOOL), str(tmp_path / "page.md")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == f'{tmp_path / "page.md"}:2: "alone": write only\n'
    (tmp_path / "page.md").write_text("only weights\n")
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_paths_that_are_not_checked_exist(tool: ModuleType) -> None:
    for path in tool.EXAMPLES:
        assert (TOOL.parents[1] / path).exists(), f"remove `{path}` from tools/check_phrases.py"
