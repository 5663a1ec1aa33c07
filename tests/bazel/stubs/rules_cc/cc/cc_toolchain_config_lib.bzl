"""What Bazel has of this name itself. Later versions of rules_cc have it in a file of their own."""

load("@bazel_tools//tools/cpp:cc_toolchain_config_lib.bzl", _tool_path = "tool_path")

tool_path = _tool_path
