"""executorch_kernels_library: a program runs with just its kernels, for this machine and for another processor."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
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

exports_files(["run_kernels.cc", "small_kernels.cc"])

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

executorch_runtime(
    name = "runtime_aarch64",
    kernels = False,
    wheel = "@executorch_linux_aarch64//:wheel",
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

cc_toolchain_suite(
    name = "compilers",
    toolchains = {"aarch64": "//examples/cpp:cross_compiler"},
)
"""
PHONES = """\
load("@rules_cc//cc:defs.bzl", "cc_binary", "cc_import", "cc_library")
load("//rules:cc.bzl", "executorch_kernels_library")

[platform(
    name = os,
    constraint_values = ["@platforms//cpu:arm64", "@platforms//os:" + os],
) for os in ["android", "ios"]]

[toolchain(
    name = os + "_compiler",
    target_compatible_with = ["@platforms//cpu:arm64", "@platforms//os:" + os],
    toolchain = "//examples/cpp:cross_compiler",
    toolchain_type = "@bazel_tools//tools/cpp:toolchain_type",
) for os in ["android", "ios"]]

cc_import(
    name = "libexecutorch",
    static_library = select({
        "@platforms//os:android": "android-arm64/libexecutorch.a",
        "@platforms//os:ios": "ios-arm64/libexecutorch.a",
    }),
)

cc_library(
    name = "runtime",
    deps = [":libexecutorch"],
)

executorch_kernels_library(
    name = "kernels",
    srcs = ["//examples/device:small_kernels.cc"],
    runtime = ":runtime",
    selected_ops = "//examples/device:selected_operators",
)

cc_binary(
    name = "app",
    srcs = ["//examples/device:run_kernels.cc"],
    data = ["//examples/device:mlp"],
    deps = [":kernels"],
)
"""


@pytest.fixture(scope="module")
def device(checkout: Workspace) -> Iterator[Workspace]:
    """The package `examples/device`; the program is built."""
    package = checkout.directory / "examples/device"
    checkout.write("examples/device/BUILD", BUILD)
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
    shutil.rmtree(checkout.directory / "examples/phones", ignore_errors=True)


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
    aarch64.need_tools()
    device.build("//examples/device:mlp")
    program = Path(shutil.copy(device.output("examples/device/mlp.pte"), tmp_path_factory.mktemp("program")))
    options = ["--cpu=aarch64", "--crosstool_top=//examples/device:compilers", "--nocheck_visibility"]
    device.build("//examples/device:run_aarch64", *options)
    check(program, *aarch64.EMULATOR, str(device.output("examples/device/run_aarch64")))


@pytest.mark.parametrize("phone", ["android", "ios"])
def test_the_library_is_analysed_for_phones(phone: str, device: Workspace, bazel7: Callable[..., Path]) -> None:
    """Their compilers cannot be had here. The program, its kernels and the runtime are chosen as for a build."""
    device.write("examples/phones/BUILD", PHONES)
    options = (f"--platforms=//examples/phones:{phone}", f"--extra_toolchains=//examples/phones:{phone}_compiler")
    bazel7(device.directory, "build", "//examples/phones:app", "--nobuild", "--nocheck_visibility", *options)


def test_a_missing_kernel_fails_the_build(device: Workspace, disk_cache: Path) -> None:
    options = ["--nocheck_visibility", f"--disk_cache={disk_cache}"]
    result = device.build("//examples/device:missing", *options, expect=1)
    assert re.search(r"functions\.yaml: \d+ kernels that are selected are missing$", result.err, re.MULTILINE), (
        result.err
    )
    assert "`aten::embedding.out` (tiny_lm.pte)" in result.err
    assert "Traceback" not in result.err
