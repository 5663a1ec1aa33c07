"""The inputs of the packages' PEX. A test with Bazel shows that the PEX is byte-reproducible."""

from __future__ import annotations

import importlib
import platform
import random
import shutil
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path
from types import ModuleType

import pytest

TOOLCHAIN = Path(__file__).parents[2] / "toolchain"


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(TOOLCHAIN)
    return importlib.import_module("build_packages")


@pytest.fixture
def locks(builder: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that reads locks, for Python 3.12.3 on Linux."""
    del builder
    module = importlib.import_module("locks")
    here = {"python_version": "3.12", "python_full_version": "3.12.3", "sys_platform": "linux"}
    here["platform_machine"] = "x86_64"
    monkeypatch.setattr(module, "ENVIRONMENT", {**module.ENVIRONMENT, **here})
    return module


@pytest.fixture
def site(tmp_path: Path) -> Path:
    site = tmp_path / "site-packages"
    (site / "package").mkdir(parents=True)
    (site / "package/module.py").write_text("VALUE = 1\n")
    (site / "package/other.py").symlink_to("module.py")
    return site


def test_modules_have_bytecode_but_for_tests(builder: ModuleType, site: Path) -> None:
    (site / "package/tests").mkdir()
    (site / "package/tests/test_module.py").write_text("VALUE = 1\n")
    (site / "package/test_module.py").write_text("VALUE = 1\n")
    builder.compile_bytecode(site)
    assert sorted(path.name.split(".")[0] for path in site.rglob("*.pyc")) == ["module", "other"]


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


WHEEL = {
    "tiny/__init__.py": "VALUE = 1\n",
    "tiny-1.0.data/platlib/tiny/part.py": "VALUE = 2\n",
    "tiny-1.0.data/scripts/tiny": "#!python\n",
    "tiny-1.0.data/data/share/tiny.txt": "nobody finds it\n",
    "bin/tiny": "#!/bin/sh\n",
    "lib/__init__.py": "a package with the name of a folder\n",
    "tiny-1.0.dist-info/METADATA": "Name: tiny\n",
}


def wheel(file: Path, members: dict[str, str]) -> Path:
    """Writes a wheel. Files that begin with `#!` are executable."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            member = zipfile.ZipInfo(name)
            member.external_attr = (0o100755 if content.startswith("#!") else 0o100600) << 16
            archive.writestr(member, content)
        record = f"{'-'.join(file.name.split('-')[:2])}.dist-info/RECORD"
        archive.writestr(record, "".join(f"{name},sha256=x,1\n" for name in members) + f"{record},,\n")
    return file


def packed(builder: ModuleType, wheels: list[Path], name: str = "packages.pex") -> Path:
    """Packs wheels, with code that prints a word, and returns the PEX."""
    pex = wheels[0].parent / name

    def make_frame(digest: str) -> Path:
        frame = pex.with_suffix(".frame")
        with zipfile.ZipFile(frame, "w") as archive:
            archive.writestr("__main__.py", "print('runs')\n")
            archive.writestr(builder.DIGEST, digest)
        return frame

    builder.write_pex(wheels, "#!/usr/bin/env python", make_frame, pex)
    return pex


def files_in(site: Path) -> list[str]:
    return sorted(path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file())


def test_a_wheel_is_installed(builder: ModuleType, tmp_path: Path) -> None:
    more = {"tiny/run.sh": "#!/bin/sh\n", "tiny/__pycache__/part.cpython-311.pyc": ""}
    file = wheel(tmp_path / "tiny-1.0-py3-none-any.whl", {**WHEEL, **more})
    site = tmp_path / "site"
    sizes = builder.unpack(packed(builder, [file]), site)
    assert not file.exists()
    installed = [
        "bin/tiny",
        "lib/__init__.py",
        "tiny-1.0.dist-info/METADATA",
        "tiny-1.0.dist-info/RECORD",
        "tiny/__init__.py",
        "tiny/part.py",
        "tiny/run.sh",
    ]
    assert files_in(site) == installed
    assert sum(sizes) == sum((site / name).stat().st_size for name in installed)
    record = (site / "tiny-1.0.dist-info/RECORD").read_text().splitlines()
    assert {row.split(",")[0] for row in record} == {*installed, "tiny/__pycache__/part.cpython-311.pyc"}
    assert record == sorted(record)
    modes = [(site / "tiny" / name).stat().st_mode & 0o777 for name in ("run.sh", "part.py")]
    assert modes == [0o755, 0o644]
    assert len({path.stat().st_mtime for path in site.rglob("*") if path.is_file()}) == 1


def test_the_last_of_two_wheels_with_the_same_file_wins(builder: ModuleType, tmp_path: Path) -> None:
    wheels = [wheel(tmp_path / f"{name}-1.0-any.whl", {"common.py": f"{name}\n", f"{name}.py": ""}) for name in "ab"]
    builder.unpack(packed(builder, wheels), tmp_path / "site")
    assert (tmp_path / "site/common.py").read_text() == "b\n"
    assert {"a.py", "b.py"} < set(files_in(tmp_path / "site"))


@pytest.mark.parametrize("name", ["tiny/../../elsewhere.py", "{}/elsewhere.py"])
def test_a_wheel_cannot_write_elsewhere(builder: ModuleType, tmp_path: Path, name: str) -> None:
    file = wheel(tmp_path / "tiny-1.0-any.whl", {name.format(tmp_path): ""})
    with pytest.raises(SystemExit, match="has a file outside of its directory"):
        builder.unpack(packed(builder, [file]), tmp_path / "site")
    assert not (tmp_path / "elsewhere.py").exists()


def test_a_pex_has_what_wheels_have_compressed(
    builder: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is compressed again: another zlib gives the same bytes. Other content gives another digest."""
    large = random.Random(0).randbytes(3 << 20) * 3
    made = []
    for number, level in enumerate((1, 9, 9)):
        place = tmp_path / str(number)
        place.mkdir()
        file = wheel(place / "tiny-1.0-any.whl", WHEEL)
        with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED, compresslevel=level) as archive:
            archive.writestr(zipfile.ZipInfo("tiny/empty.py"), "")
            entry = zipfile.ZipInfo("tiny/large.so")
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, large + bytes(number > 0), compresslevel=level)
        with monkeypatch.context() as patch:
            patch.setattr(zlib, "compressobj", None)
            made.append(packed(builder, [file]))
    assert made[1].read_bytes() == made[2].read_bytes()
    digests = []
    for number, pex in enumerate(made):
        assert pex.read_bytes().startswith(b"#!/usr/bin/env python\n")
        with zipfile.ZipFile(pex) as archive:
            assert archive.testzip() is None
            assert archive.read("tiny/large.so") == large + bytes(number > 0)
            digests.append(archive.read(builder.DIGEST))
    assert digests[0] != digests[1]
    done = subprocess.run([sys.executable, made[0]], capture_output=True, text=True, check=True)
    assert done.stdout == "runs\n"


def test_another_compression_is_refused(builder: ModuleType, tmp_path: Path) -> None:
    file = wheel(tmp_path / "tiny-1.0-any.whl", WHEEL)
    with zipfile.ZipFile(file, "a", zipfile.ZIP_LZMA) as archive:
        archive.writestr("tiny/more.py", "VALUE = 1\n")
    with pytest.raises(
        SystemExit, match=r"tiny-1\.0-any\.whl has tiny/more\.py in a compression that PEX files do not have"
    ):
        packed(builder, [file])


@pytest.mark.parametrize(
    ("condition", "value"),
    [
        ("python_full_version < '3.13'", True),
        ("python_full_version >= '3.12.4'", False),
        ("python_version == '3.12.0'", True),
        ("python_full_version > '3.9'", True),  # as texts, "3.12.3" is below "3.9"
        ("'3.9' < python_version", True),
        ("python_version in '3.11 3.12'", True),
        ("sys_platform != 'win32' and (platform_machine == 'arm64' or os_name == 'nt')", False),
        ("python_full_version < '3.12' or sys_platform == 'linux'", True),
        ("platform_machine not in 'arm64 aarch64'", True),
        ("extra == 'more'", False),
    ],
)
def test_conditions_of_pins(locks: ModuleType, condition: str, value: bool) -> None:
    assert locks.holds(condition) is value


@pytest.mark.parametrize("condition", ["python_version ~= '3.11'", "python_version", "python == '3.11'", "1 < 2 < 3"])
def test_another_condition_is_refused(locks: ModuleType, condition: str) -> None:
    with pytest.raises(SystemExit, match="cannot read the condition of a pin: "):
        locks.holds(condition)


def test_only_pins_for_this_machine_count(locks: ModuleType, tmp_path: Path) -> None:
    lock = tmp_path / "own.lock"
    lock.write_text(
        "# A remark.\n"
        "torch==2.13.0 ; sys_platform == 'darwin' \\\n    --hash=sha256:00\n"
        "torch==2.13.0+cpu ; sys_platform != 'darwin' \\\n    --hash=sha256:01\n"
        "tomli[more] == 2.2 ; python_full_version < '3.11' --hash=sha256:02\n"
        "older==1.0 \\\n    ; python_version < '3.11' \\\n    --hash=sha256:03\n"
    )
    pins = locks.pins_of([lock])
    assert locks.pinned(pins) == {"torch": "2.13.0+cpu"}
    assert locks.split_torch(pins) == (pins[0], [])
    locks.use_platform("osx_aarch64")
    assert locks.pinned(locks.pins_of([lock])) == {"torch": "2.13.0"}
    with pytest.raises(SystemExit, match="must pin torch once, with `torch==`, and do it 0 times"):
        locks.split_torch([])


PINS = [
    "Tiny_Layers==1.0 \\\n    --hash=sha256:00\n",
    "torch==2.13.0\n",
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
    assert set(builder.check_packages(file, PINS)) == {"more", "tiny-layers", "torch"}
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
        with pytest.raises(SystemExit, match=r"not a packages\.pex"):
            builder.check_packages(file, PINS)


def test_the_users_own_lock_has_the_packages_of_the_extras(locks: ModuleType, tmp_path: Path) -> None:
    lock = tmp_path / "requirements-small.lock"
    lock.write_text("# A remark.\ntiny-layers==0.9 --hash=sha256:00\n")
    locks.check_covers(PINS, [lock])
    lock.write_text("other==0.9 --hash=sha256:00\n")
    with pytest.raises(SystemExit, match="lacks packages of the extra `small`: other"):
        locks.check_covers(PINS, [lock])


def test_the_users_own_lock_has_what_the_driver_needs(locks: ModuleType) -> None:
    """Before anything is downloaded. A package whose condition does not hold here is not there."""
    locks.check_has(PINS, ["tiny-layers", "torch"])
    with pytest.raises(SystemExit, match="lacks packages that the driver needs: jinja2, rich"):
        locks.check_has(PINS, ["jinja2", "rich", "torch"])


def test_a_lock_adds_what_the_toolchain_does_not_have(locks: ModuleType, tmp_path: Path) -> None:
    """A lock of packages that need torch repeats torch, and what its CUDA build needs."""
    lock, cuda = tmp_path / "more.lock", tmp_path / "cuda.lock"
    cuda.write_text("nvidia-tiny==5.0 --hash=sha256:00\n")
    new = "layers-of-ours==2.0 \\\n    --hash=sha256:00"
    lock.write_text(f"# A remark.\n{new}\nnvidia-tiny==5.0 --hash=sha256:00\ntorch==2.13.0 --hash=sha256:00\n")
    pins = [*PINS, "torch==2.13.0+cpu\n"]
    assert locks.added_pins(lock, pins, cuda) == [new]
    lock.write_text("tiny.layers==1.1 --hash=sha256:00\n")
    with pytest.raises(SystemExit, match=r"more.lock has tiny-layers 1.1, and the toolchain has tiny-layers 1.0"):
        locks.added_pins(lock, pins, cuda)


@pytest.mark.parametrize("line", ["layers-of-ours>=2.0", "layers-of-ours @ file:///layers.whl", "--pre"])
def test_a_lock_with_packages_to_add_has_pins_only(locks: ModuleType, tmp_path: Path, line: str) -> None:
    lock, cuda = tmp_path / "more.lock", tmp_path / "cuda.lock"
    cuda.touch()
    lock.write_text(f"{line}\n")
    with pytest.raises(SystemExit, match=f"more.lock has a line that is not `PACKAGE==VERSION` with hashes: {line}"):
        locks.added_pins(lock, PINS, cuda)
    lock.write_text("# No packages.\n")
    assert locks.added_pins(lock, PINS, cuda) == []
