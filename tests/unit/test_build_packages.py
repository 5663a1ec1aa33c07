"""The inputs of the packages' PEX. A test with Bazel shows that the PEX is byte-reproducible."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

BUILDER = Path(__file__).parents[2] / "toolchain/build_packages.py"


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_packages", BUILDER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def site(tmp_path: Path) -> Path:
    site = tmp_path / "site-packages"
    (site / "package").mkdir(parents=True)
    (site / "package/module.py").write_text("VALUE = 1\n")
    (site / "package/other.py").symlink_to("module.py")
    return site


def files(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


def test_bytecode_that_is_being_written_is_not_among_the_sources_of_the_pex(
    builder: ModuleType, site: Path, tmp_path: Path
) -> None:
    before = files(site)
    sources = builder.snapshot(site, tmp_path / "sources")
    with builder.compile_bytecode(site):
        # Python first writes bytecode to this file, which can be renamed or removed at any moment.
        (site / "package/__pycache__").mkdir(exist_ok=True)
        (site / "package/__pycache__/module.cpython-311.pyc.140").touch()
    assert list(site.rglob("module.*.pyc"))
    assert files(sources) == before
    assert (sources / "package/other.py").is_symlink()


def test_sources_are_copied_where_there_are_no_links(
    builder: ModuleType, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(builder.os, "link", refuse)
    sources = builder.snapshot(site, tmp_path / "sources")
    assert files(sources) == files(site)
    assert (sources / "package/module.py").stat().st_nlink == 1
