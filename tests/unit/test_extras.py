"""The command that installs an extra names packages, and the same as `pyproject.toml`."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import tomllib
from packaging.requirements import Requirement

from etbuild.extras import DISTRIBUTION, install_hint

REPOSITORY = Path(__file__).parents[2]
EXTRAS = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", sorted(EXTRAS))
def test_an_extra_is_installed_by_its_packages(extra: str) -> None:
    command, _, in_bazel = install_hint(extra).partition("; ")
    pip, install, *packages = shlex.split(command)
    assert (pip, install) == ("pip", "install")
    assert {str(Requirement(package)) for package in packages} == {str(Requirement(text)) for text in EXTRAS[extra]}
    assert f'"{extra}"' in in_bazel


def test_the_distribution_has_the_name_of_its_metadata() -> None:
    assert tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]["name"] == DISTRIBUTION


def test_without_metadata_only_bazel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [])
    assert (
        install_hint("gguf", "huggingface") == 'in Bazel, add "gguf" and "huggingface" to the `extras` of the toolchain'
    )


def test_nothing_takes_this_package_from_an_index_where_another_one_may_have_its_name() -> None:
    kinds = ("md", "py", "bzl", "cmake", "sh", "yaml", "yml", "html")
    command = ["git", "ls-files", *(f"*.{kind}" for kind in kinds), ":!changes", ":!CHANGELOG.md", ":!tests/unit"]
    files = subprocess.check_output(command, cwd=REPOSITORY, text=True).split()
    texts = {file: (REPOSITORY / file).read_text("utf-8", "replace") for file in files}
    assert len(texts) > 500
    taken = re.compile(rf"pip install(?!.* --no-index).*\s['\"]?(etbuild|{DISTRIBUTION})\b(?!/)")
    found = {file: taken.findall(text) for file, text in texts.items()}
    assert not {file for file in found if found[file]}
    assert taken.search("pip install etbuild")
    assert taken.search(f"pip install --no-deps '{DISTRIBUTION}[gguf]'")
