"""What sources may read, as far as that needs no PyTorch."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from etbuild import undeclared
from etbuild.errors import BuildError


def module(directory: Path, name: str) -> Path:
    directory.mkdir(parents=True)
    file = directory / f"{name}.py"
    file.write_text("VALUE = 1\n", "utf-8")
    return file


def test_an_installed_package_may_consist_of_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So do packages from some installers, and the driver itself in Bazel's runfiles."""
    file = module(tmp_path / "store", "package_of_links")
    site = tmp_path / "site"
    site.mkdir()
    (site / file.name).symlink_to(file)
    monkeypatch.syspath_prepend(site)
    with undeclared.refused({}, [], {"package_of_links"}):
        assert importlib.import_module("package_of_links").VALUE == 1


def test_a_module_in_a_directory_that_is_added_later_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = module(tmp_path / "vendored", "module_of_nobody")
    monkeypatch.setattr(sys, "path", list(sys.path))
    watch = undeclared.refused({}, [], set())
    watch.__enter__()
    sys.path.insert(0, str(file.parent))
    importlib.import_module("module_of_nobody")
    with pytest.raises(BuildError, match="neither declared nor installed"):
        watch.__exit__(None, None, None)
