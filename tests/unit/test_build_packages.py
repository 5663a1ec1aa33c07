"""The inputs of the packages' PEX. A test with Bazel shows that the PEX is byte-reproducible."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import zipfile
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


def test_the_description_of_python_depends_on_its_files_only(
    builder: ModuleType, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def described(standard: Path) -> dict[str, str]:
        monkeypatch.setattr(builder.sysconfig, "get_path", lambda _: str(standard))
        found: dict[str, str] = builder.describe_python()
        assert str(tmp_path) not in str(found)
        return found

    first = described(site.parent)
    (site / "package/module.py").write_text("VALUE = 2\n")  # no part of the standard library
    (site.parent / "__pycache__").mkdir()
    (site.parent / "__pycache__/json.cpython-311.pyc").touch()
    other = shutil.copytree(site.parent, tmp_path / "elsewhere/lib")
    assert described(other) == first
    (other / "json.py").write_text("VALUE = 1\n")
    assert described(other)["standard_library"] != first["standard_library"]


def test_sources_are_copied_where_there_are_no_links(
    builder: ModuleType, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(builder.os, "link", refuse)
    sources = builder.snapshot(site, tmp_path / "sources")
    assert files(sources) == files(site)
    assert (sources / "package/module.py").stat().st_nlink == 1


PINS = [
    "Tiny_Layers==1.0 \\\n    --hash=sha256:00\n",
    "torch==2.13.0\n",
    'winonly==3.0 ; sys_platform == "win32"\n',
    "--pre\n",
]


def packages(file: Path, distributions: dict[str, str], parts: tuple[str, ...] = ("PEX-INFO", "__main__.py")) -> Path:
    """Writes a PEX with distributions, each with the last part of its tag."""
    with zipfile.ZipFile(file, "w") as archive:
        for part in parts:
            archive.writestr(part, "{}")
        for distribution, target in distributions.items():
            archive.writestr(f"{distribution}.dist-info/WHEEL", f"Wheel-Version: 1.0\nTag: cp311-cp311-{target}\n")
        command = zipfile.ZipInfo("torch/bin/command")
        command.external_attr = 0o100755 << 16
        archive.writestr(command, "#!/bin/sh\n")
        archive.writestr("torch/__init__.py", "VALUE = 1\n")
    return file


HERE = f"manylinux_2_28_{platform.machine()}"
RIGHT = {"tiny_layers-1.0": "any", "torch-2.13.0+cpu": HERE, "more-4.0": "any"}


def test_a_file_with_the_packages_of_the_lock_is_unpacked(builder: ModuleType, tmp_path: Path) -> None:
    file = packages(tmp_path / "packages.pex", RIGHT)
    builder.check_packages(file, PINS)
    builder.unpack(file, tmp_path / "site")
    unpacked = {str(path.relative_to(tmp_path / "site")) for path in (tmp_path / "site").rglob("*") if path.is_file()}
    assert unpacked == {"torch/bin/command", "torch/__init__.py", *(f"{name}.dist-info/WHEEL" for name in RIGHT)}
    modes = [(tmp_path / "site/torch" / name).stat().st_mode & 0o777 for name in ("bin/command", "__init__.py")]
    assert modes == [0o755, 0o644]
    assert len({path.stat().st_mtime for path in (tmp_path / "site").rglob("*") if path.is_file()}) == 1


@pytest.mark.parametrize(
    ("distributions", "message"),
    [
        pytest.param({"torch-2.13.0": HERE}, "has no tiny-layers, and the lock has tiny-layers 1.0", id="missing"),
        pytest.param({**RIGHT, "tiny_layers-1.1": "any"}, "has tiny-layers 1.1, and the lock has 1.0", id="version"),
        pytest.param(
            {**RIGHT, "torch-2.13.0+cpu": "macosx_11_0_vax"},
            "is not for this machine .*: its torch 2.13.0\\+cpu is for cp311-cp311-macosx_11_0_vax",
            id="machine",
        ),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    builder: ModuleType, tmp_path: Path, distributions: dict[str, str], message: str
) -> None:
    with pytest.raises(SystemExit, match=message):
        builder.check_packages(packages(tmp_path / "packages.pex", distributions), PINS)


def test_a_file_that_is_no_pex_is_refused(builder: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "page").write_text("<html>Log in</html>")
    for file in (tmp_path / "page", packages(tmp_path / "zip", RIGHT, parts=())):
        with pytest.raises(SystemExit, match=r"no packages\.pex"):
            builder.check_packages(file, PINS)


def test_the_users_own_lock_has_the_packages_of_the_extras(builder: ModuleType, tmp_path: Path) -> None:
    lock = tmp_path / "requirements-small.lock"
    lock.write_text("# A remark.\ntiny-layers==0.9 --hash=sha256:00\n")
    builder.check_covers(PINS, [lock])
    lock.write_text("other==0.9 --hash=sha256:00\n")
    with pytest.raises(SystemExit, match="lacks packages of the extra `small`: other"):
        builder.check_covers(PINS, [lock])


def test_a_lock_adds_what_the_toolchain_does_not_have(builder: ModuleType, tmp_path: Path) -> None:
    """A lock of packages that need torch repeats torch, and what its CUDA build needs."""
    lock, cuda = tmp_path / "more.lock", tmp_path / "cuda.lock"
    cuda.write_text("nvidia-tiny==5.0 --hash=sha256:00\n")
    new = "layers-of-ours==2.0 \\\n    --hash=sha256:00"
    lock.write_text(f"# A remark.\n{new}\nnvidia-tiny==5.0 --hash=sha256:00\ntorch==2.13.0 --hash=sha256:00\n")
    pins = [*PINS, "torch==2.13.0+cpu\n"]
    assert builder.added_pins(lock, pins, cuda) == [new]
    lock.write_text("tiny.layers==1.1 --hash=sha256:00\n")
    with pytest.raises(SystemExit, match=r"more.lock has tiny-layers 1.1, and the toolchain has tiny-layers 1.0"):
        builder.added_pins(lock, pins, cuda)
