"""executorch_kernels_library: a program runs with just its kernels, for this machine and for another processor."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import torch
from executorch.runtime import Runtime

from tests.helpers import aarch64
from tests.helpers.workspaces import REPOSITORY, Workspace

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(shutil.which("g++") is None, reason="Bazel compiles C++: install g++"),
]

HELPERS = REPOSITORY / "tests/helpers"
SELECTED = ["aten::addmm.out", "aten::permute_copy.out", "aten::relu.out"]
BUILD = """\
load("//rules:cc.bzl", "executorch_kernels_library", "executorch_runtime")
load("//rules:defs.bzl", "executorch_program", "executorch_selected_ops")
load(":compiler.bzl", "aarch64_compiler")

executorch_program(
    name = "mlp",
    srcs = ["model.py"],
    manifest = "mlp.yaml",
)

executorch_selected_ops(
    name = "selected_operators",
    programs = [":mlp"],
)

executorch_runtime(
    name = "runtime",
    kernels = False,
)

cc_import(
    name = "runtime_so",
    shared_library = "executorch/lib/libexecutorch.so",
)

cc_library(
    name = "runtime_aarch64",
    hdrs = glob(["executorch/include/**/*.h"], allow_empty = True),
    defines = ["C10_USING_CUSTOM_GENERATED_MACROS", "ET_EVENT_TRACER_ENABLED"],
    includes = ["executorch/include", "executorch/include/executorch/runtime/core/portable_type/c10"],
    deps = [":runtime_so"],
)

[executorch_kernels_library(
    name = "kernels" + suffix,
    srcs = ["small_kernels.cc"],
    runtime = ":runtime" + suffix,
    selected_ops = ":selected_operators",
) for suffix in ["", "_aarch64"]]

[cc_binary(
    name = "run" + suffix,
    srcs = ["run_kernels.cc"],
    copts = ["-std=c++17"],
    deps = [":kernels" + suffix],
) for suffix in ["", "_aarch64"]]

executorch_selected_ops(
    name = "selected_of_tiny_lm",
    programs = ["//examples/tiny_lm"],
)

executorch_kernels_library(
    name = "missing",
    functions = ["functions.yaml"],
    runtime = ":runtime",
    selected_ops = ":selected_of_tiny_lm",
)

aarch64_compiler(name = "config")

filegroup(name = "none")

cc_toolchain(
    name = "compiler",
    all_files = ":none",
    compiler_files = ":none",
    dwp_files = ":none",
    linker_files = ":none",
    objcopy_files = ":none",
    strip_files = ":none",
    supports_param_files = 0,
    toolchain_config = ":config",
)

cc_toolchain_suite(
    name = "compilers",
    toolchains = {"aarch64": ":compiler"},
)
"""
COMPILER = """\
load("@bazel_tools//tools/cpp:cc_toolchain_config_lib.bzl", "tool_path")

def _aarch64_compiler_impl(ctx):
    return cc_common.create_cc_toolchain_config_info(
        ctx = ctx,
        toolchain_identifier = "aarch64",
        host_system_name = "local",
        abi_version = "unknown",
        abi_libc_version = "unknown",
        target_system_name = "aarch64-linux-gnu",
        target_cpu = "aarch64",
        target_libc = "glibc",
        compiler = "gcc",
        cxx_builtin_include_directories = ["/usr/aarch64-linux-gnu/include", "/usr/lib/gcc-cross/aarch64-linux-gnu"],
        tool_paths = [
            tool_path(name = name, path = "/usr/bin/" + tool)
            for name, tool in {
                "ar": "aarch64-linux-gnu-ar",
                "cpp": "aarch64-linux-gnu-cpp",
                "gcc": "aarch64-linux-gnu-g++",
                "gcov": "aarch64-linux-gnu-gcov",
                "ld": "aarch64-linux-gnu-ld",
                "nm": "aarch64-linux-gnu-nm",
                "objdump": "aarch64-linux-gnu-objdump",
                "strip": "aarch64-linux-gnu-strip",
            }.items()
        ],
    )

aarch64_compiler = rule(
    implementation = _aarch64_compiler_impl,
    attrs = {},
    provides = [CcToolchainConfigInfo],
)
"""


@pytest.fixture(scope="module")
def device(checkout: Workspace) -> Iterator[Workspace]:
    """The package `examples/device`; the program is built."""
    package = checkout.directory / "examples/device"
    checkout.write("examples/device/BUILD", BUILD)
    checkout.write("examples/device/compiler.bzl", COMPILER)
    checkout.write("examples/device/functions.yaml", "- op: add.Scalar_out\n  kernels: [{kernel_name: my::add}]\n")
    manifest = (checkout.directory / "examples/mlp/model.yaml").read_text()
    checkout.write("examples/device/mlp.yaml", manifest.replace("[xnnpack]", "[]"))
    for file in (
        HELPERS / "run_kernels.cc",
        HELPERS / "small_kernels.cc",
        checkout.directory / "examples/mlp/model.py",
    ):
        shutil.copy(file, package)
    yield checkout
    shutil.rmtree(package)


def check(program: Path, *command: str) -> None:
    """Checks that a program in C++ has just the kernels of the model, and computes what Python does."""
    done = subprocess.run([*command, program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    kernels = re.findall(r"^kernel (aten::.*)$", done.stdout, re.MULTILINE)
    assert sorted(set(kernels) - {"aten::sym_size.int", "aten::_local_scalar_dense", "aten::sym_numel"}) == SELECTED
    [result] = re.findall(r"^forward result ([0-9a-f]+)$", done.stdout, re.MULTILINE)
    [expected] = Runtime.get().load_program(program).load_method("forward").execute([(torch.arange(16) % 3.0)[None]])
    numpy.testing.assert_allclose(numpy.frombuffer(bytes.fromhex(result), numpy.float32)[None], expected, rtol=1e-5)


def test_a_program_runs_with_just_its_kernels(device: Workspace) -> None:
    device.build("//examples/device:run", "//examples/device:mlp")
    check(device.output("examples/device/mlp.pte"), str(device.output("examples/device/run")))


def test_the_library_is_for_the_target_platform(device: Workspace, tmp_path_factory: pytest.TempPathFactory) -> None:
    wheel = aarch64.wheel(tmp_path_factory.mktemp("wheel"))
    device.build("//examples/device:mlp")
    program = Path(shutil.copy(device.output("examples/device/mlp.pte"), tmp_path_factory.mktemp("program")))
    shutil.copytree(wheel, device.directory / "examples/device/executorch")
    options = ["--cpu=aarch64", "--crosstool_top=//examples/device:compilers"]
    device.build("//examples/device:run_aarch64", *options)
    check(program, *aarch64.EMULATOR, str(device.output("examples/device/run_aarch64")))


def test_a_missing_kernel_fails_the_build(device: Workspace, disk_cache: Path) -> None:
    options = ["--nocheck_visibility", f"--disk_cache={disk_cache}"]
    result = device.build("//examples/device:missing", *options, expect=1)
    assert re.search(r"functions\.yaml: \d+ kernels that are selected are missing$", result.err, re.MULTILINE), (
        result.err
    )
    assert "`aten::embedding.out` (tiny_lm.pte)" in result.err
    assert "Traceback" not in result.err
