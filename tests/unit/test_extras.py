"""The command that installs an extra names packages, and the same as `pyproject.toml`."""

from __future__ import annotations

import importlib.metadata
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import tomllib
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from etbuild.extras import DISTRIBUTION, install_hint
from tests.unit.test_step_packages import top_level_imports

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


def test_no_verb_needs_an_extra_to_be_imported() -> None:
    """It imports a package of an extra where it calls it. `etbuild test` once needed transformers for all programs."""
    lock = (REPOSITORY / "toolchain/requirements.lock").read_text("utf-8")
    of_all = set(re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE))
    of_extras = {canonicalize_name(Requirement(text).name) for texts in EXTRAS.values() for text in texts} - of_all
    installed = importlib.metadata.packages_distributions()
    packages = {name for name, owners in installed.items() if of_extras & {*map(canonicalize_name, owners)}}
    assert {"transformers", "gguf"} <= packages
    files = {
        path.relative_to(REPOSITORY / "toolchain"): path for path in (REPOSITORY / "toolchain").glob("et*/**/*.py")
    }
    modules = {str(name.with_suffix("")).removesuffix("/__init__").replace("/", "."): files[name] for name in files}
    waiting = [module for module in modules if not module.startswith("etplugins")]
    found: set[str] = set()
    wrong = []
    while waiting:
        if (module := waiting.pop()) not in found:
            found.add(module)
            imported = top_level_imports(modules[module].read_text("utf-8"))
            wrong += [module] if packages & {name.partition(".")[0] for name in imported} else []
            waiting += imported & modules.keys()
    assert wrong == []
