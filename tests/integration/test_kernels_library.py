"""A C++ program with just the kernels of a model computes what PyTorch does: on this machine, and on an aarch64 one."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import executorch
import numpy
import pytest
import torch
from executorch.exir import to_edge

from tests.helpers import aarch64
from tests.helpers.commands import etbuild

pytestmark = pytest.mark.skipif(shutil.which("cmake") is None, reason="install cmake")

HELPERS = Path(__file__).parents[1] / "helpers"
SELECTED = ["aten::addmm.out", "aten::permute_copy.out", "aten::relu.out"]
PROJECT = """\
cmake_minimum_required(VERSION 3.20)
project(app CXX)
find_package(etbuild REQUIRED)
add_library(executorch INTERFACE)
target_include_directories(
  executorch SYSTEM INTERFACE "${WHEEL}/include" "${WHEEL}/include/executorch/runtime/core/portable_type/c10")
target_compile_definitions(executorch INTERFACE C10_USING_CUSTOM_GENERATED_MACROS ET_EVENT_TRACER_ENABLED)
target_link_libraries(executorch INTERFACE "${WHEEL}/lib/libexecutorch.so")
executorch_add_kernels_library(kernels PROGRAMS net.pte SOURCES "${HELPERS}/small_kernels.cc" RUNTIME executorch)
executorch_add_kernels_library(
  all_dtypes PROGRAMS net.pte SOURCES "${HELPERS}/small_kernels.cc" RUNTIME executorch ALL_DTYPES)
foreach(name IN ITEMS kernels all_dtypes executorch)
  add_executable(with_${name} "${HELPERS}/run_kernels.cc")
  target_link_libraries(with_${name} PRIVATE ${name})
endforeach()
"""
# The modes of Android's NDK, which looks for packages only in its own files.
AARCH64 = f"""\
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER {aarch64.COMPILER})
set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
"""


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.linear(x).relu()


class Sine(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin().relu()


@dataclass
class Project:
    """Programs of the model and of another one, and an application for a machine that is built."""

    directory: Path
    net: Net
    emulator: list[str]

    def run(self, kernels: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*self.emulator, f"build/with_{kernels}", *arguments]
        return subprocess.run(command, cwd=self.directory, capture_output=True, text=True, check=False)

    def registered(self, kernels: str) -> set[str]:
        done = self.run(kernels)
        assert done.returncode == 0, done.stderr
        names = re.findall(r"^kernel (.*)$", done.stdout, re.MULTILINE)
        assert len(names) == len(set(names))
        return set(names)

    def symbols(self, kernels: str) -> str:
        command = ["nm", "-C", str(self.directory / f"build/with_{kernels}")]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module", params=["this machine", "aarch64"])
def project(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Project:
    directory = tmp_path_factory.mktemp("a project")
    options: list[str] = []
    emulator: list[str] = []
    wheel = Path(executorch.__path__[0])
    if request.param == "aarch64":
        wheel, emulator = aarch64.wheel(tmp_path_factory.mktemp("wheel")), aarch64.EMULATOR
        (directory / "aarch64.cmake").write_text(AARCH64)
        options = ["-DCMAKE_TOOLCHAIN_FILE=aarch64.cmake"]
    torch.manual_seed(0)
    net = Net()
    modules: dict[str, torch.nn.Module] = {"net": net, "sine": Sine()}
    for name, module in modules.items():
        exported = torch.export.export(module.eval(), (torch.zeros(1, 8),))
        (directory / f"{name}.pte").write_bytes(to_edge(exported).to_executorch().buffer)
    (directory / "CMakeLists.txt").write_text(PROJECT)
    prefix = etbuild("--cmake-prefix-path").stdout.strip()
    driver = Path(sys.executable).with_name("etbuild")
    options += [f"-Detbuild_DIR={prefix}", f"-DETBUILD_EXECUTABLE={driver}", f"-DWHEEL={wheel}", f"-DHELPERS={HELPERS}"]
    for command in (["cmake", "-S", ".", "-B", "build", *options], ["cmake", "--build", "build"]):
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return Project(directory, net, emulator)


def test_just_the_selected_kernels_are_registered(project: Project) -> None:
    of_runtime = project.registered("executorch")
    assert not of_runtime & set(SELECTED)
    assert sorted(project.registered("kernels") - of_runtime) == SELECTED


def test_a_model_computes_what_pytorch_does(project: Project) -> None:
    done = project.run("kernels", "net.pte")
    assert done.returncode == 0, done.stdout + done.stderr
    [result] = re.findall(r"^forward result ([0-9a-f]+)$", done.stdout, re.MULTILINE)
    [expected] = project.net((torch.arange(8) % 3).float().reshape(1, 8)).detach().numpy()
    assert expected.any()
    numpy.testing.assert_allclose(numpy.frombuffer(bytes.fromhex(result), numpy.float32), expected, rtol=1e-5)


def test_another_operator_is_missing(project: Project) -> None:
    done = project.run("kernels", "sine.pte")
    assert done.returncode == 1
    assert done.stdout.endswith("forward error 14\n")  # Error::OperatorMissing
    assert "Missing operator: [0] aten::sin.out" in done.stderr


def test_kernels_have_code_for_the_selected_dtypes_only(project: Project) -> None:
    assert "rectify<float>" in project.symbols("kernels")
    assert "rectify<double>" not in project.symbols("kernels")
    assert "rectify<double>" in project.symbols("all_dtypes")


def test_the_machine(project: Project) -> None:
    binary = (project.directory / "build/with_kernels").read_bytes()
    machine = "aarch64" if project.emulator else platform.machine()
    assert int.from_bytes(binary[18:20], "little") == {"x86_64": 62, "aarch64": 183}[machine]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("PROGRAMS net.pte", "RUNTIME is missing"),
        ("RUNTIME executorch", "PROGRAMS is missing"),
        ("PROGRAMS executorch RUNTIME executorch", "no target of executorch_add_program"),
        ("PROGRAMS net.pte RUNTIME executorch net2.pte", "unknown arguments"),
    ],
)
def test_a_wrong_call_is_an_error(arguments: str, message: str, tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("CMake tries a compiler: install g++")
    call = f"executorch_add_kernels_library(wrong {arguments})\n"
    (tmp_path / "CMakeLists.txt").write_text(PROJECT[: PROJECT.index("executorch_add_kernels_library")] + call)
    prefix = etbuild("--cmake-prefix-path").stdout.strip()
    driver = Path(sys.executable).with_name("etbuild")
    options = [f"-Detbuild_DIR={prefix}", f"-DETBUILD_EXECUTABLE={driver}", "-DWHEEL=wheel"]
    done = subprocess.run(
        ["cmake", "-S", ".", "-B", "build", *options], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert message in " ".join(done.stderr.split())
