"""What makes the environment with the packages, without uv: tests/integration/test_fetched_packages.py runs it."""

from __future__ import annotations

import base64
import importlib
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from hashlib import sha256
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


RECORD = "tiny-1.0.dist-info/RECORD"


def installed(site: Path, files: dict[str, str], record: str = RECORD) -> Path:
    """Writes the files of a distribution as an installer does, and returns its RECORD."""
    rows = []
    for name, content in {**files, f"{record.partition('/')[0]}/INSTALLER": "uv"}.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(content)
        digest = base64.urlsafe_b64encode(sha256(content.encode()).digest()).decode().rstrip("=")
        rows.append(f"{name},sha256={digest},{len(content)}\n")
    rows += ["../../../bin/tiny,sha256=x,1\n", f"{record},,\n"]
    (site / record).write_text("".join(rows))
    return site / record


def test_a_record_does_not_depend_on_the_installer(builder: ModuleType, tmp_path: Path) -> None:
    files = {"tiny/b.py": "VALUE = 1\n", "tiny/a.py": "", "tiny-1.0.dist-info/METADATA": "Name: tiny\n"}
    described = []
    for number, items in enumerate((files.items(), reversed(files.items()))):
        record = installed(tmp_path / str(number), dict(items))
        described.append(builder.normal_record(record))
        assert [row.split(",")[0] for row in record.read_text().splitlines()] == sorted([*files, RECORD])
        assert not record.with_name("INSTALLER").exists()
    assert described[0] == described[1]
    other = installed(tmp_path / "other", {**files, "tiny/a.py": "VALUE = 2\n"})
    assert builder.normal_record(other) != described[0]


def test_a_file_without_a_digest_is_refused(builder: ModuleType, tmp_path: Path) -> None:
    record = installed(tmp_path, {})
    record.write_text("tiny.py,,\n")
    with pytest.raises(SystemExit, match=r"tiny-1\.0\.dist-info has no digest of tiny\.py"):
        builder.normal_record(record)


def test_packages_with_the_same_file_are_found(builder: ModuleType, tmp_path: Path) -> None:
    """uv writes them in any order. They are then installed again, one after the other."""
    for name, text in (("a", "1"), ("b", "2"), ("c", "1")):
        installed(tmp_path, {"common.py": text, f"{name}.py": ""}, f"{name}-1.0.dist-info/RECORD")
    installed(tmp_path, {"d.py": ""}, "d-1.0.dist-info/RECORD")
    assert builder.overlapping(tmp_path) == [f"{name}-1.0.dist-info" for name in "abc"]


def test_what_a_file_says_about_its_contents_is_checked(builder: ModuleType, tmp_path: Path) -> None:
    record = installed(tmp_path, {"tiny.py": "VALUE = 1\n", "more.py": ""})
    assert builder.changed(record) == []
    (tmp_path / "tiny.py").write_text("VALUE = 2\n")
    assert builder.changed(record) == ["tiny.py"]


def test_a_directory_is_made_once(builder: ModuleType, tmp_path: Path) -> None:
    """What a process that was killed has left is removed."""
    made = []

    def fill(place: Path) -> None:
        made.append(place.name)
        (place / "file").touch(exist_ok=False)
        if len(made) == 1:
            raise KeyboardInterrupt

    place = tmp_path / "packages/key"
    with pytest.raises(KeyboardInterrupt):
        builder.made_once(place, fill)
    assert not place.exists()
    for _ in range(2):
        assert builder.made_once(place, fill) == place
    assert (made, [each.name for each in place.iterdir()]) == (["key.partial"] * 2, ["file"])


def test_the_directory_is_that_of_the_user(
    builder: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    out = tmp_path / "out"
    monkeypatch.setenv("RULES_EXECUTORCH_CACHE", str(tmp_path / "own"))
    assert builder.cache_root(out) == tmp_path / "own"
    monkeypatch.setenv("RULES_EXECUTORCH_CACHE", str(tmp_path / "file/below"))
    with pytest.raises(SystemExit, match="RULES_EXECUTORCH_CACHE names a directory that cannot be written to, "):
        builder.cache_root(out)
    monkeypatch.delenv("RULES_EXECUTORCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert builder.cache_root(out) == tmp_path / "xdg/rules_executorch"
    assert not capsys.readouterr().err
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert builder.cache_root(out) == out / "cache"
    assert "so the packages are not shared: name another directory" in capsys.readouterr().err


def test_equal_files_are_compiled_once(builder: ModuleType, tmp_path: Path) -> None:
    sites = [builder.site_packages(tmp_path / name / "venv") for name in "ab"]
    for site in sites:
        site.mkdir(parents=True)
    (sites[0] / "tiny.py").write_text("VALUE = 1\n")
    builder.compile_bytecode(sites[0])
    (sites[1] / "tiny.py").hardlink_to(sites[0] / "tiny.py")
    (sites[1] / "other.py").write_text("VALUE = 2\n")
    builder.reuse_bytecode(sites[1], [tmp_path / "a"])
    builder.compile_bytecode(sites[1])
    first, second = (next(site.glob("__pycache__/tiny.*.pyc")) for site in sites)
    assert first.samefile(second)
    assert list(sites[1].glob("__pycache__/other.*.pyc"))


def test_packages_are_packed_and_unpacked(builder: ModuleType, tmp_path: Path) -> None:
    """The file runs Python with the packages, and has no bytecode."""
    site = builder.site_packages(tmp_path / "venv")
    (site / "tiny").mkdir(parents=True)
    (site / "tiny/__init__.py").write_text("VALUE = 1\n")
    (site / "tiny/run.sh").write_text("#!/bin/sh\n")
    (site / "tiny/run.sh").chmod(0o755)
    builder.compile_bytecode(site)
    (tmp_path / "packages.json").write_text("{}")
    files = [tmp_path / f"{number}.pex" for number in range(2)]
    for file in files:
        builder.pack(tmp_path / "packages.json", file, tmp_path / "venv")
    assert files[0].read_bytes() == files[1].read_bytes()
    assert sum(builder.unpack(files[0], tmp_path / "site")) == 20
    assert [path.name for path in sorted((tmp_path / "site/tiny").iterdir())] == ["__init__.py", "run.sh"]
    modes = [(tmp_path / "site/tiny" / name).stat().st_mode & 0o777 for name in ("run.sh", "__init__.py")]
    assert modes == [0o755, 0o644]
    command: list[str | Path] = [sys.executable, files[0], "-c", "import sys, tiny; print(tiny.VALUE, sys.prefix)"]
    environment = {**os.environ, "PEX_ROOT": str(tmp_path / "root")}
    said = [subprocess.check_output(command, env=environment, text=True) for _ in range(2)]
    assert said[0] == said[1]
    assert said[0].startswith(f"1 {tmp_path}/root/")


def test_a_file_cannot_write_elsewhere(builder: ModuleType, tmp_path: Path) -> None:
    for name in ("tiny/../../elsewhere.py", f"{tmp_path}/elsewhere.py"):
        with zipfile.ZipFile(tmp_path / "packages.pex", "w") as archive:
            archive.writestr(name, "")
        with pytest.raises(SystemExit, match="has a file outside of its directory"):
            builder.unpack(tmp_path / "packages.pex", tmp_path / "site")
    assert not (tmp_path / "elsewhere.py").exists()


def test_pips_configuration_becomes_options_of_uv(
    builder: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables come before the user's file. Other settings of pip, such as its constraints, change nothing."""
    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = https://a.example.com\nextra-index-url =\n  https://b.example.com\n"
        "  https://c.example.com\ncert = /ca.pem\nconstraint = /no\n[install]\nno-index = true\n[freeze]\ntimeout = 3\n"
    )
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_INDEX_URL", "https://d.example.com")
    options, variables = builder.options_of_pip(tmp_path)
    own = ["--index", "https://b.example.com", "--index", "https://c.example.com"]
    assert [word for word in options if "/opt" not in word] == [
        *own,
        "--default-index",
        "https://d.example.com",
        "--no-index",
    ]
    assert variables == {"SSL_CERT_FILE": "/ca.pem"}


def test_the_build_of_torch(locks: ModuleType, tmp_path: Path) -> None:
    """The CPU build is the one that a lock has the hash of; other builds are asked for by their exact version."""
    cpu = tmp_path / "cpu.lock"
    cpu.write_text("torch==2.13.0+cpu ; python_version in '3.12' \\\n    --hash=sha256:01\n")
    both, one = (
        f"torch==2.13.0 \\\n    {hashes}" for hashes in ("--hash=sha256:00 --hash=sha256:01", "--hash=sha256:00")
    )
    assert locks.build_of_torch(both, cpu, "") == both.replace("2.13.0", "2.13.0+cpu")
    assert locks.build_of_torch(both, cpu, "index") == both.replace("==", "===")
    assert locks.build_of_torch(one, cpu, "") == one.replace("==", "===")
    own = one.replace("2.13.0", "2.13.0+cpu")
    assert locks.build_of_torch(own, cpu, "cpu") == own
    with pytest.raises(
        SystemExit, match=r"has no CPU build of torch 2\.13\.0 for Python 3\.12 on linux x86_64: choose"
    ):
        locks.build_of_torch(one, cpu, "cpu")


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


def packages(
    file: Path, distributions: dict[str, str], parts: tuple[str, ...] = ("packages.json", "__main__.py")
) -> Path:
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
