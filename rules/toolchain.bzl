"""Rules for toolchains with packages or a driver of your own. `defs.bzl` has them too."""

load("//toolchain:py_toolchain.bzl", _executorch_py_toolchain = "executorch_py_toolchain")
load("//toolchain:toolchain.bzl", _executorch_toolchain = "executorch_toolchain")

executorch_py_toolchain = _executorch_py_toolchain
executorch_toolchain = _executorch_toolchain
