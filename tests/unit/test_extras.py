"""The command that installs an extra names packages, and the same as `pyproject.toml`."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import tomllib
from packaging.requirements import Requirement

from etbuild.extras import install_hint

REPOSITORY = Path(__file__).parents[2]
EXTRAS = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", sorted(EXTRAS))
def test_an_extra_is_installed_by_its_packages(extra: str) -> None:
    command, _, in_bazel = install_hint(extra).partition("; ")
    pip, install, *packages = shlex.split(command)
    assert (pip, install) == ("pip", "install")
    assert {str(Requirement(package)) for package in packages} == {str(Requirement(text)) for text in EXTRAS[extra]}
    assert f'"{extra}"' in in_bazel


def test_without_metadata_only_bazel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [])
    assert (
        install_hint("gguf", "huggingface") == 'in Bazel, add "gguf" and "huggingface" to the `extras` of the toolchain'
    )


def test_nothing_names_this_package_as_one_of_an_index() -> None:
    kinds = ("md", "py", "bzl", "cmake", "sh", "yaml", "yml", "html")
    command = ["git", "ls-files", *(f"*.{kind}" for kind in kinds), ":!changes", ":!CHANGELOG.md", ":!tests/unit"]
    files = subprocess.check_output(command, cwd=REPOSITORY, text=True).split()
    texts = {file: (REPOSITORY / file).read_text("utf-8", "replace") for file in files}
    assert len(texts) > 500
    assert [file for file, text in texts.items() if re.search(r"pip install\s+'?etbuild", text)] == []


def _imported(tree: ast.Module) -> set[str]:
    """The modules that a module imports when it is imported: those in functions come later, or never."""
    found, open_ = set[str](), list[ast.AST](tree.body)
    while open_:
        node = open_.pop()
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        elif isinstance(node, ast.If | ast.Try | ast.With) and "TYPE_CHECKING" not in ast.unparse(node)[:20]:
            open_ += ast.iter_child_nodes(node)
    return found


def test_no_verb_imports_the_package_of_an_extra_before_it_is_needed() -> None:
    """`etbuild test` of any model needed transformers, because a module for language models imported it."""
    extras = {Requirement(text).name for texts in EXTRAS.values() for text in texts} - {"executorch", "numpy"}
    toolchain = REPOSITORY / "toolchain"
    imports: dict[str, set[str]] = {}
    for top in ("etbuild", "etkit", "etplugins"):
        for path in (toolchain / top).rglob("*.py"):
            name = ".".join(path.relative_to(toolchain).with_suffix("").parts).removesuffix(".__init__")
            imports[name] = _imported(ast.parse(path.read_text("utf-8")))
    assert "etplugins.transformers.experts" in imports
    for name in imports:
        if name.startswith("etplugins."):
            continue  # a plug-in is imported for the programs that use it, and these need its packages
        reached, open_ = set[str](), [name]
        while open_:
            each = open_.pop()
            assert each.partition(".")[0] not in extras, f"{name} imports {each}"
            open_ += [other for other in imports.get(each, ()) if other not in reached]
            reached |= imports.get(each, set())
