"""Programs in C++ compute what the Python runtime computes, bit for bit: from files and embedded. They run on other
processors too."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers import aarch64
from tests.helpers.generated_text import generated, tokens
from tests.helpers.workspaces import Workspace

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(shutil.which("g++") is None, reason="Bazel compiles C++: install g++"),
]

LABEL = "//examples/cpp"
BINARIES = ["generate", "generate_embedded"]
TEXT, COUNT = "Hello", 4
SUITE = """\
cc_toolchain_suite(
    name = "suite",
    toolchains = {"aarch64": "//examples/cpp:cross_compiler"},
)
"""
FOR_AARCH64 = (f"--platforms={LABEL}:linux_aarch64", f"--extra_toolchains={LABEL}:linux_aarch64_compiler")
OF_BAZEL_4 = ("--cpu=aarch64", "--crosstool_top=//examples/suite", "--nocheck_visibility")
"""It takes the compiler by the name of the processor, and not by the platform."""


@pytest.fixture(scope="module")
def compiled(checkout: Workspace, disk_cache: Path) -> Workspace:
    checkout.build(*(f"{LABEL}:{binary}" for binary in BINARIES), f"--disk_cache={disk_cache}")
    return checkout


@pytest.fixture(scope="module")
def expected(compiled: Workspace) -> str:
    """What the Python runtime computes."""
    return generated(compiled.output("examples/tiny_lm"), TEXT, COUNT)


@pytest.mark.parametrize("binary", BINARIES)
def test_cpp_computes_what_python_computes(binary: str, compiled: Workspace, expected: str) -> None:
    done = ran(compiled, binary)
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected


def ran(workspace: Workspace, binary: str, *emulator: str) -> subprocess.CompletedProcess[str]:
    command = [*emulator, str(workspace.output(f"examples/cpp/{binary}")), TEXT, str(COUNT)]
    runfiles = workspace.output(f"examples/cpp/{binary}.runfiles/rules_executorch")
    return subprocess.run(command, cwd=runfiles, capture_output=True, text=True, check=False)


def test_a_missing_file_is_an_error_and_no_crash(compiled: Workspace, tmp_path: Path) -> None:
    binary = compiled.output("examples/cpp/generate")
    shutil.copy(compiled.output("examples/tiny_lm/tiny_lm.pte"), tmp_path)
    done = subprocess.run([binary, TEXT, "1", tmp_path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot load the program: error 0x22" in done.stderr
    (tmp_path / "tiny_lm.weights.ptd").write_bytes(b"of another build")
    done = subprocess.run([binary, TEXT, "1", tmp_path], capture_output=True, text=True, check=False)
    assert "cannot load the program: error 0x24" in done.stderr


def test_another_processor(compiled: Workspace, expected: str, disk_cache: Path) -> None:
    """The compiler is Debian's cross compiler, the runtime that of ExecuTorch's wheel for aarch64."""
    aarch64.need_tools()
    compiled.write("examples/suite/BUILD", SUITE)
    targets = [f"{LABEL}:{binary}" for binary in BINARIES]
    once = "--//toolchain:one_configuration"
    compiled.build(*targets, *FOR_AARCH64, *OF_BAZEL_4, once, f"--disk_cache={disk_cache}")
    for binary in BINARIES:
        done = ran(compiled, binary, *aarch64.EMULATOR)
        assert done.returncode == 0, done.stderr
        assert tokens(done.stdout) == tokens(expected)


def test_bazel_7_takes_the_compiler_by_the_platform(checkout: Workspace, bazel7: Callable[..., Path]) -> None:
    """It needs no more options. It only analyses: the compiler may be missing where it runs."""
    bazel7(checkout.directory, "build", f"{LABEL}:generate", "--nobuild", *FOR_AARCH64)
