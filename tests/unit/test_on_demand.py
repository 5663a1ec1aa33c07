"""Packages that are written when they are imported, in the form for remote executors."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

TOOLCHAIN = Path(__file__).parents[2] / "toolchain"
BINARY = b"\x7fELF" + bytes(1 << 20)
FILES: dict[str, bytes] = {
    "__main__.py": b"raise SystemExit('the file was run')\n",
    "packages.json": b"{}",
    "single.py": b"NAME = 'single'\n",
    "first-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: first\nVersion: 1.0\n",
    "first.libs/libsmall.so": b"small",
    "first/__init__.py": b"import second\nDATA = open(__path__[0] + '/data/facts.txt').read()\n",
    "first/below.py": b"def f():\n    return 'text'\n",
    "first/data/facts.txt": b"facts",
    "first/lib/liblarge.so": BINARY,
    "first/for_python_2.py": b"print 'two'\n",
    "second/__init__.py": b"",
    "second/tool": b"#!/bin/sh\n",
    "unused/__init__.py": b"raise SystemExit('imported')\n",
    "without_init/part.py": b"NAME = 'part'\n",
    "torch/__init__.py": b"",
    "torch/include/c10.h": b"#pragma once\n",
    "torch/utils/__init__.py": b"",
    "torch/utils/cpp_extension.py": b"",
}


@pytest.fixture(scope="module")
def pex(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pex") / "packages.pex"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in FILES.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (0o755 if name.endswith("tool") else 0o644) << 16
            archive.writestr(entry, content)
    return path


def python(*arguments: str | Path, seed: int = 0, expect: int = 0) -> str:
    """Runs Python as the rules do. Returns what it prints, errors too."""
    environment = {"PATH": os.environ["PATH"], "PYTHONHASHSEED": str(seed)}
    done = subprocess.run(
        [sys.executable, "-E", "-s", "-S", *arguments], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == expect, done.stderr
    return done.stdout + done.stderr


def split(pex: Path, directory: Path, seed: int = 0) -> Path:
    python(TOOLCHAIN / "split_packages.py", "", pex, directory, seed=seed)
    return directory


@pytest.fixture(scope="module")
def packages(pex: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return split(pex, tmp_path_factory.mktemp("split") / "packages")


class Environment:
    """A virtual environment with the packages."""

    def __init__(self, packages: Path, directory: Path) -> None:
        python(TOOLCHAIN / "on_demand.py", "", packages, directory)
        self.python = directory / "bin/python"
        self.site = directory / "lib/python{}.{}/site-packages".format(*sys.version_info)

    def run(self, code: str, expect: int = 0) -> str:
        done = subprocess.run([self.python, "-s", "-P", "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == expect, done.stderr
        return done.stdout + done.stderr

    def files(self) -> set[str]:
        names = {path.relative_to(self.site).as_posix() for path in self.site.rglob("*") if not path.is_dir()}
        return {name for name in names if not name.startswith("__") and "__pycache__" not in name}


@pytest.fixture
def environment(packages: Path, tmp_path: Path) -> Environment:
    return Environment(packages, tmp_path / "environment")


AT_ONCE = {"first-1.0.dist-info/METADATA", "first.libs/libsmall.so", "single.py"}


def test_a_package_is_written_when_it_is_imported(environment: Environment) -> None:
    assert environment.files() == AT_ONCE
    assert environment.run("import single, first, first.below; print(first.DATA, first.below.f())") == "facts text\n"
    of_both = {name for name in FILES if name.startswith(("first/", "second/"))}
    assert environment.files() == AT_ONCE | of_both
    assert (environment.site / "first/lib/liblarge.so").read_bytes() == BINARY
    assert os.access(environment.site / "second/tool", os.X_OK)
    assert not os.access(environment.site / "first/data/facts.txt", os.X_OK)


def test_a_package_that_a_program_only_looks_for_is_not_written(environment: Environment) -> None:
    code = "import importlib.util as u; s = u.find_spec('unused'); print(s.origin, u.find_spec('nothing'))"
    assert environment.run(code) == f"{environment.site}/unused/__init__.py None\n"
    assert environment.files() == AT_ONCE


def test_a_package_without_code_of_its_own_is_found(environment: Environment) -> None:
    assert environment.run("import without_init.part as p; print(p.NAME)") == "part\n"


def test_sources_are_there_for_messages(environment: Environment) -> None:
    code = "import inspect, first.below as b; print(inspect.getsource(b.f), b.f.__code__.co_filename)"
    assert environment.run(code) == f"def f():\n    return 'text'\n {environment.site}/first/below.py\n"


def test_headers_are_there_for_those_who_compile(environment: Environment) -> None:
    header = "torch/include/c10.h"
    environment.run("import torch.utils")
    assert header not in environment.files()
    environment.run("import torch.utils.cpp_extension")
    assert header in environment.files()


def test_many_processes_import_a_package_at_the_same_time(environment: Environment) -> None:
    code = "import first.below; print(first.below.f())"
    running = [
        subprocess.Popen([environment.python, "-s", "-P", "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    assert [process.communicate()[0] for process in running] == ["text\n"] * 6
    assert not list(environment.site.glob(".*"))


def test_the_split_form_has_bytecode_and_equal_bytes(pex: Path, tmp_path: Path) -> None:
    def digests(directory: Path) -> dict[str, bytes]:
        return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}

    first, second = split(pex, tmp_path / "a", seed=1), split(pex, tmp_path / "elsewhere/b", seed=2)
    assert digests(first) == digests(second)
    assert list(first.glob("binaries/first/first/lib/*")) == [first / "binaries/first/first/lib/liblarge.so"]
    environment = Environment(first, tmp_path / "environment")
    code = "import first.below as b; print(b.__cached__, b.__loader__.get_data(b.__cached__)[4:8])"
    shown = f"{environment.site}/first/__pycache__/below.{sys.implementation.cache_tag}.pyc {bytes([1, 0, 0, 0])!r}\n"
    assert environment.run(code) == shown  # not checked against its source
    assert not list((environment.site / "first").rglob("*.pyc"))


def test_installed_packages_are_split_in_the_same_way(pex: Path, packages: Path, tmp_path: Path) -> None:
    """Their own bytecode is left out: it may be that of another patch release."""
    site = tmp_path / "venv/lib/python{}.{}/site-packages".format(*sys.version_info)
    with zipfile.ZipFile(pex) as archive:
        for entry in archive.infolist():
            if entry.filename not in ("__main__.py", "packages.json"):
                (site / entry.filename).parent.mkdir(parents=True, exist_ok=True)
                (site / entry.filename).write_bytes(archive.read(entry))
                (site / entry.filename).chmod(entry.external_attr >> 16)
    (site / "first/__pycache__").mkdir()
    (site / "first/__pycache__/below.cpython-35.pyc").write_bytes(b"old")
    python(TOOLCHAIN / "split_packages.py", "", "--installed", tmp_path / "made", tmp_path / "venv")
    made = {path.relative_to(tmp_path / "made"): path for path in (tmp_path / "made").rglob("*") if path.is_file()}
    assert {str(name): path.read_bytes() for name, path in made.items()} == {
        str(path.relative_to(packages)): path.read_bytes() for path in packages.rglob("*") if path.is_file()
    }


def test_a_step_may_read_packages_that_it_imports_late(packages: Path, tmp_path: Path) -> None:
    """It reads nothing but what is declared or installed, or behind links beside what is installed."""
    linked = tmp_path / "linked"  # as in a sandbox
    linked.mkdir()
    for path in packages.iterdir():
        (linked / path.name).symlink_to(path)
    site = Environment(linked, tmp_path / "environment").site
    assert {linked, packages} <= {Path(each).resolve() for each in site.iterdir() if each.is_symlink()}


def test_what_one_environment_changes_is_not_in_the_next(packages: Path, tmp_path: Path) -> None:
    first, second = (Environment(packages, tmp_path / name) for name in ("one", "two"))
    first.run("import first.below as b; open(b.__file__, 'a').write('f = lambda: 1\\n')")
    assert second.run("import first.below as b; print(b.f())") == "text\n"


@pytest.mark.parametrize("script", ["on_demand.py", "split_packages.py"])
def test_another_version_of_python_is_refused(script: str, tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    if script == "on_demand.py":
        packages.mkdir()
    (packages / "python" if packages.is_dir() else packages).write_bytes(b"#!/usr/bin/env python3.5\nPK\x03\x04")
    message = python(TOOLCHAIN / script, "", packages, tmp_path / "made", expect=1)
    assert message == f"{sys.executable} is Python 3.{sys.version_info[1]}, but the packages are for Python 3.5\n"
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("script", ["on_demand.py", "split_packages.py"])
def test_an_interpreter_has_the_version_that_its_toolchain_tells(
    script: str, pex: Path, packages: Path, tmp_path: Path
) -> None:
    """Keys hold this version and the path. So another Python at the same path is refused, also a patch release."""
    given = packages if script == "on_demand.py" else pex
    major, minor, micro = sys.version_info[:3]
    here = f"{major}.{minor}.{micro}"
    for number, fitting in enumerate((here, f"{major}.{minor}", f"{major}")):
        python(TOOLCHAIN / script, fitting, given, tmp_path / str(number))
    for other in (f"{major}.{minor}.{micro + 1}", f"{here}1", f"{major}.{minor + 1}", f"{major}.{minor}1"):
        message = python(TOOLCHAIN / script, other, given, tmp_path / "made", expect=1)
        found = f"{sys.executable} is Python {here}, and Bazel's Python toolchain says that it is {other}"
        assert message.startswith(found)
        assert not (tmp_path / "made").exists()


class Targets:
    """Installed files as targets of rules_python have them: a directory for each package, without its RECORD."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lines: list[str] = []

    def add(self, target: str, files: dict[str, bytes]) -> None:
        self.lines.insert(0, f"ROOT\t{target}/site-packages")
        for name, content in files.items():
            path = self.directory / target / "site-packages" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            self.lines.append(f"{target}/site-packages/{name}\t{path}")

    def split(self, expect: int = 0) -> str:
        (self.directory / "list.txt").write_text("\n".join(self.lines) + "\n")
        arguments = ("", "--files", self.directory / "list.txt", self.directory / "split")
        return python(TOOLCHAIN / "split_packages.py", *arguments, expect=expect)


def tags(name: str, tag: str) -> dict[str, bytes]:
    return {
        f"{name}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{name}-1.0.dist-info/WHEEL": f"Wheel-Version: 1.0\nTag: {tag}\n".encode(),
    }


def test_files_of_other_targets_become_packages_with_records(tmp_path: Path) -> None:
    """A program's key holds the digests that a RECORD lists, so it has to be the one that pip writes."""
    targets = Targets(tmp_path)
    shared = {"shared/__init__.py": b"NAME = 'second'\n"}
    targets.add("pypi_second", {**shared, "second/__init__.py": b"", **tags("second", "py3-none-any")})
    shared = {"shared/__init__.py": b"NAME = 'first'\n"}
    targets.add("pypi_first", {**shared, "first/lib/large.so": BINARY, **tags("first", "py2.py3-none-any")})
    targets.split()
    environment = Environment(tmp_path / "split", tmp_path / "made")
    assert environment.run("import shared; print(shared.NAME)") == "first\n"  # it is on Python's path before the other
    records = {
        name: (environment.site / f"{name}-1.0.dist-info/RECORD").read_text().splitlines()
        for name in ("first", "second")
    }
    digest = base64.urlsafe_b64encode(hashlib.sha256(BINARY).digest()).decode().rstrip("=")
    assert f"first/lib/large.so,sha256={digest},{len(BINARY)}" in records["first"]
    owners = [name for name, rows in records.items() if any(row.startswith("shared/") for row in rows)]
    assert owners == ["first"]


@pytest.mark.parametrize("tag", ["cp35-cp35-linux_x86_64", "cp399-abi3-linux_x86_64"])
def test_packages_for_another_version_of_python_are_refused(tag: str, tmp_path: Path) -> None:
    targets = Targets(tmp_path)
    targets.add("pypi_old", {"old.py": b"", **tags("old", tag)})
    assert f"old-1.0 is for {tag}, and the interpreter of the toolchain is Python 3." in targets.split(expect=1)
