"""The rules for C++. They are apart from `defs.bzl`, because most workspaces do not need them."""

load(
    "//rules/private:cc.bzl",
    _executorch_cc_library = "executorch_cc_library",
    _executorch_embed = "executorch_embed",
    _executorch_runtime = "executorch_runtime",
)
load("//rules/private:kernels_library.bzl", _executorch_kernels_library = "executorch_kernels_library")

executorch_cc_library = _executorch_cc_library
executorch_embed = _executorch_embed
executorch_kernels_library = _executorch_kernels_library
executorch_runtime = _executorch_runtime
