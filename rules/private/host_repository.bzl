"""The repository rule host_repository: facts about Bazel and this machine that the rules need while they are loaded.

It downloads nothing, so that a build which only loads the rules does not wait for the packages.
"""

load(":compat.bzl", "is_before", "own_global")
load(":pythons.bzl", "PYTHONS_JSON", "pythons_on_path")

_BUILD = """\
exports_files(["cc.bzl", "host.bzl", "{pythons}"], visibility = ["//visibility:public"])
"""

_HOST = '''\
"""About this Bazel and this machine. Made by rules_executorch."""
{loads}
# An interpreter on the PATH of the repository rules. Empty if there is none.
PYTHON = {python}

_INFOS = [{infos}]

# The providers of Python libraries: that of rules_python, that of the attribute `py_info`, and Bazel's own if it has one.
PY_INFOS = [info for number, info in enumerate(_INFOS) if info and info not in _INFOS[:number]]

# The function that makes a group of actions with an execution platform of its own, if this Bazel has it.
EXEC_GROUP = {exec_group}

# The platform of this machine.
HOST_PLATFORM = {platform}
'''

_CC = '''\
"""The rules of C++. Made by rules_executorch, apart from `host.bzl`: only programs in C++ need them."""

{loads}
CC_COMMON = {cc_common}
CC_INFO = {cc_info}
CC_LIBRARY = {cc_library}
CC_TOOLCHAIN = {cc_toolchain}
'''

# What rules_cc has and what Bazel's own rules have.
_CC_OF_MODULE = '''\
load("@rules_cc//cc:cc_library.bzl", "cc_library")
load("@rules_cc//cc/common:cc_common.bzl", "cc_common")
load("@rules_cc//cc/common:cc_info.bzl", "CcInfo")
'''

_PY_INFO_OF_MODULE = "@rules_python//python:py_info.bzl"

def _cc(repository_ctx):
    """Returns the text of `cc.bzl`."""
    if repository_ctx.attr.is_module:
        return _CC.format(
            cc_common = "cc_common",
            cc_info = "CcInfo",
            cc_library = "cc_library",
            cc_toolchain = "Label(\"@rules_cc//cc:current_cc_toolchain\")",
            loads = _CC_OF_MODULE,
        )
    return _CC.format(
        cc_common = own_global(repository_ctx, "cc_common"),
        cc_info = own_global(repository_ctx, "CcInfo"),
        cc_library = "native.cc_library",
        cc_toolchain = "\"@bazel_tools//tools/cpp:current_cc_toolchain\"",
        loads = "",
    )

def _host_repository_impl(repository_ctx):
    files = [_PY_INFO_OF_MODULE] if repository_ctx.attr.is_module else []
    files += [str(repository_ctx.attr.py_info)] if repository_ctx.attr.py_info else []
    loaded = ["_py_info_{}".format(number) for number in range(len(files))]
    repository_ctx.file("BUILD", _BUILD.format(pythons = PYTHONS_JSON), executable = False)
    repository_ctx.file(PYTHONS_JSON, pythons_on_path(repository_ctx), executable = False)
    repository_ctx.file("host.bzl", _HOST.format(
        exec_group = "None" if is_before(repository_ctx, 5) else "exec_group",
        infos = ", ".join(loaded + [own_global(repository_ctx, "PyInfo")]),
        python = repr(str(repository_ctx.which("python3") or "")),
        platform = repr(repository_ctx.attr.platform),
        loads = "".join(["\nload(\"{}\", {} = \"PyInfo\")".format(file, name) for file, name in zip(files, loaded)]) + "\n",
    ), executable = False)
    repository_ctx.file("cc.bzl", _cc(repository_ctx), executable = False)

host_repository = repository_rule(
    implementation = _host_repository_impl,
    doc = "What the rules have to know about Bazel and this machine.",
    attrs = {
        "is_module": attr.bool(
            doc = "Whether rules_cc and rules_python are there, because this is for a MODULE.bazel file.",
        ),
        "platform": attr.string(
            doc = "The label of this machine's platform. It is another one with WORKSPACE files than with MODULE.bazel.",
            mandatory = True,
        ),
        "py_info": attr.label(
            doc = "A `.bzl` file with a `PyInfo`, for Python rules that provide neither that of rules_python nor Bazel's own.",
        ),
    },
    configure = True,
    # The paths of interpreters. A PATH changes often, so they are not in the repository of the packages.
    environ = ["PATH"],
)
