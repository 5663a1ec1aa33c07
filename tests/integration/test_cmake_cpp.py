"""Programs in C++ by CMake: the example runs where it is installed, on this machine and on an aarch64 one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers import aarch64
from tests.helpers.commands import etbuild
from tests.helpers.generated_text import generated, tokens

pytestmark = [
    pytest.mark.skipif(shutil.which("cmake") is None, reason="install cmake"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="CMake compiles C++: install g++"),
]

ROOT = Path(__file__).parents[2]
TEXT, COUNT = "Hello", 4
COMPILER = f"""\
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER {aarch64.COMPILER})
"""
PROJECT = """\
cmake_minimum_required(VERSION 3.20)
project(app CXX)
find_package(etbuild REQUIRED)
executorch_add_runtime(runtime)
executorch_add_cc_library(tiny_lm_cc PROGRAM "${PROGRAM}" RUNTIME runtime)
add_executable(generate "${EXAMPLE}/generate.cc")
target_link_libraries(generate PRIVATE tiny_lm_cc)
"""


def cmake(*arguments: str | Path, tool: str | Path = "cmake") -> subprocess.CompletedProcess[str]:
    return subprocess.run([tool, *arguments], capture_output=True, text=True, check=False)


def configure(source: Path, build: Path, *options: str, tool: str | Path = "cmake") -> subprocess.CompletedProcess[str]:
    driver = Path(sys.executable).with_name("etbuild")
    prefix = etbuild("--cmake-prefix-path").stdout.strip()
    found = (f"-Detbuild_DIR={prefix}", f"-DETBUILD_EXECUTABLE={driver}")
    return cmake("-S", source, "-B", build, *found, *options, tool=tool)


def made(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout + done.stderr


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@dataclass
class Installed:
    """The example, installed in a directory. That in which it was built is gone."""

    directory: Path
    emulator: list[str]

    def run(self, name: str) -> str:
        return run(*self.emulator, self.directory / "bin" / name, TEXT, str(COUNT), self.directory / "share/generate")


@pytest.fixture(scope="module", params=["this machine", "aarch64"])
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    build, there = tmp_path_factory.mktemp("build"), tmp_path_factory.mktemp("there")
    emulator: list[str] = []
    options = [f"-DCMAKE_INSTALL_PREFIX={there}"]
    if request.param == "aarch64":
        emulator = aarch64.EMULATOR
        options.append(f"-DEXECUTORCH_WHEEL={aarch64.wheel(tmp_path_factory.mktemp('wheel'))}")
        (build / "compiler.cmake").write_text(COMPILER)
        options.append(f"-DCMAKE_TOOLCHAIN_FILE={build}/compiler.cmake")
    made(configure(ROOT / "examples/cpp", build, *options))
    made(cmake("--build", build))
    made(cmake("--install", build))
    shutil.rmtree(build)
    return Installed(there, emulator)


@pytest.mark.parametrize("name", ["generate", "generate_embedded"])
def test_the_example_computes_what_python_computes(name: str, installed: Installed) -> None:
    text = installed.run(name)
    expected = generated(installed.directory / "share/generate", TEXT, COUNT)
    if installed.emulator:  # another processor rounds in another way
        assert tokens(text) == tokens(expected)
    else:
        assert text == expected


def test_an_installed_program_finds_its_own_libraries_only(installed: Installed) -> None:
    text = run("readelf", "-d", installed.directory / "bin/generate")
    [path] = [line.split("[")[1] for line in text.splitlines() if "(RUNPATH)" in line or "(RPATH)" in line]
    assert path == "$ORIGIN/../lib]"
    for part in ("backend_xnnpack", "kernels_optimized", "kernels_quantized"):  # no symbol refers to them
        assert f"[libexecutorch_{part}.so]" in text


@pytest.mark.long
@pytest.mark.parametrize("version", ["3.20.5", "3.28.4", "4.4.5"])
def test_versions_of_cmake(version: str, cli_built: Callable[[str], Path], tmp_path: Path) -> None:
    """The first one that the package supports, the first one with targets of ExecuTorch's own, and a new one."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path / "tool")]
    if subprocess.run([*command, f"cmake=={version}"], capture_output=True, check=False).returncode:
        pytest.skip(f"cmake {version} cannot be downloaded")
    tool = tmp_path / "tool/cmake/data/bin/cmake"
    program = cli_built("tiny_lm")
    (tmp_path / "CMakeLists.txt").write_text(PROJECT)
    options = (f"-DPROGRAM={program}", f"-DEXAMPLE={ROOT / 'examples/cpp'}")
    made(configure(tmp_path, tmp_path / "build", *options, tool=tool))
    made(cmake("--build", tmp_path / "build", tool=tool))
    text = run(tmp_path / "build/generate", TEXT, str(COUNT), program.parent)
    assert text == generated(program.parent, TEXT, COUNT)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("executorch_add_runtime(wrong X)", "unknown arguments: X"),
        ("executorch_add_runtime(wrong DIRECTORY nowhere)", "nowhere/lib/libexecutorch.so is missing"),
        ("executorch_add_cc_library(wrong PROGRAM net.pte)", "RUNTIME is missing"),
        ("executorch_add_cc_library(wrong RUNTIME runtime)", "PROGRAM is missing"),
        ("executorch_add_cc_library(wrong PROGRAM runtime RUNTIME runtime)", "no target of executorch_add_program"),
    ],
)
def test_a_wrong_call_is_an_error(call: str, message: str, tmp_path: Path) -> None:
    lines = ["cmake_minimum_required(VERSION 3.20)", "project(app NONE)", "find_package(etbuild REQUIRED)"]
    lines += ["add_library(runtime INTERFACE)", call]
    (tmp_path / "CMakeLists.txt").write_text("\n".join(lines) + "\n")
    done = configure(tmp_path, tmp_path / "build")
    assert done.returncode != 0
    assert message in " ".join(done.stderr.split())
