"""The pages in docs/reference equal those that the tool makes from the sources.

So the lines of docs/reference/*.md and docs/reference/command-line/*.md are those that the parsers print.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.reference import ARCHITECTURE, DIRECTORY, ROOT, fact_files, markdown, pages
from tools.reference.packages import with_packages
from tools.reference.python_names import PUBLIC
from tools.reference.starlark import Loader
from tools.write_reference import main


def test_the_pages_are_current(update_golden: bool) -> None:
    if update_golden:
        main()
    committed = {path.relative_to(DIRECTORY).as_posix(): path.read_text("utf-8") for path in DIRECTORY.rglob("*.md")}
    for name, text in pages().items():
        assert committed.pop(name, None) == text, f"run `make reference`: docs/reference/{name} is not current"
    assert not committed, "run `make reference`: no source produces these pages any more"


def test_the_rules_load_what_the_driver_knows() -> None:
    for path, text in fact_files().items():
        assert (ROOT / path).read_text("utf-8") == text, f"run `make reference`: {path} is not current"


def test_the_packages_in_the_architecture_are_those_of_the_driver() -> None:
    text = ARCHITECTURE.read_text("utf-8")
    assert text == with_packages(text, ROOT), "run `make reference`: the table in ARCHITECTURE.md is not current"
    assert "| `lower` |" in text


def test_the_files_that_the_architecture_names_exist() -> None:
    text = ARCHITECTURE.read_text("utf-8").partition("## Where to add what")[2].partition("\n## ")[0]
    named = re.findall(r"`([a-z_0-9/.]+/[a-z_0-9]*(?:\.[a-z0-9.]+)?)`", text)
    places = [ROOT / "toolchain/etbuild", ROOT / "toolchain", ROOT]
    assert len(named) > 80
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


def test_the_pages_need_no_torch() -> None:
    script = (
        "import sys, tools.reference; tools.reference.pages(); assert not {'torch', 'executorch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_can_be_imported(module: str) -> None:
    script = f"from {module} import {', '.join(PUBLIC[module])}"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_example_of_a_package_uses_public_names_only() -> None:
    files = list((ROOT / "examples/third_party_backend/etbuild_tally").glob("*.py"))
    imports = [node for file in files for node in ast.walk(ast.parse(file.read_text("utf-8")))]
    used = {
        (node.module, alias.name)
        for node in imports
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("etbuild.")
        for alias in node.names
    }
    assert ("etbuild.backends", "Backend") in used
    assert used <= {(module, name) for module, names in PUBLIC.items() for name in names}


def test_a_private_file_is_loaded_with_what_it_loads(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules/attributes.bzl").write_text('ATTRS = {"srcs": attr.label_list(doc = "Sour" + "ces.")}\n')
    (tmp_path / "rules/defs.bzl").write_text(
        '"""A file."""\nload(":attributes.bzl", _A = "ATTRS")\nbuild = rule(doc = "Builds.", attrs = dict(_A))\n'
        "ATTRS = _A\n"
    )
    module = Loader(tmp_path).load(tmp_path / "rules/defs.bzl")
    assert module.doc == "A file."
    assert set(module.names) == {"build", "ATTRS"}
    assert module.names["build"].arguments["attrs"]["srcs"].doc == "Sources."


def test_sections_of_a_docstring_become_lists() -> None:
    arguments = "Args:\n    a: First,\n        continued.\n    b: Second."
    text = f"Does it.\n\n    call(1)\n\n    call(2)\n\n{arguments}\n\nThen this."
    assert markdown.docstring(text, "python") == (
        "Does it.\n\n```python\ncall(1)\n\ncall(2)\n```\n\n"
        "**Arguments**\n\n- `a`: First, continued.\n- `b`: Second.\n\nThen this."
    )


GENERATED = re.compile(r"(?s)<!-- packages -->.*?<!-- /packages -->")  # it grows with each plug-in


def test_pages_are_short() -> None:
    lines = {
        path.relative_to(ROOT).as_posix(): GENERATED.sub("", path.read_text("utf-8")).count("\n")
        for path in [ARCHITECTURE, *(ROOT / "docs").rglob("*.md")]
    }
    assert len(lines) > 100
    assert {page: count for page, count in lines.items() if count > markdown.LONGEST_PAGE} == {}


def test_the_links_of_a_text_fit_the_page_that_shows_it() -> None:
    text = "[a](../backends.md#one) [b](rules/library.md) [c](#here) [d](rules.md#x)"
    placed = "[a](../../backends.md#one) [b](library.md) [c](#here) [d](../rules.md#x)"
    assert markdown.placed("rules/net.md", text) == placed
