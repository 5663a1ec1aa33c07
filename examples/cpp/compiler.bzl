"""Debian's cross compiler (`apt-get install g++-aarch64-linux-gnu`) as a C++ toolchain.

It shows what a toolchain needs. A monorepo has one already, and the rules take whatever Bazel finds for the platform.
"""

load("@rules_cc//cc:cc_toolchain_config_lib.bzl", "tool_path")
load("@rules_executorch_host//:cc.bzl", "CC_COMMON")  # in other workspaces: cc_common of @rules_cc//cc/common:cc_common.bzl

_PREFIX = "aarch64-linux-gnu-"

# The names that Bazel asks for, and the programs.
_TOOLS = {
    "ar": "ar",
    "cpp": "cpp",
    "gcc": "g++",
    "gcov": "gcov",
    "ld": "ld",
    "nm": "nm",
    "objdump": "objdump",
    "strip": "strip",
}

def _cross_compiler_impl(ctx):
    return CC_COMMON.create_cc_toolchain_config_info(
        ctx = ctx,
        toolchain_identifier = "linux_aarch64",
        host_system_name = "local",
        abi_version = "unknown",
        abi_libc_version = "unknown",
        target_system_name = "aarch64-linux-gnu",
        target_cpu = "aarch64",
        target_libc = "glibc",
        compiler = "gcc",
        cxx_builtin_include_directories = ["/usr/aarch64-linux-gnu/include", "/usr/lib/gcc-cross/aarch64-linux-gnu"],
        tool_paths = [tool_path(name = name, path = "/usr/bin/" + _PREFIX + _TOOLS[name]) for name in _TOOLS],
    )

cross_compiler = rule(
    implementation = _cross_compiler_impl,
    attrs = {},
)
