"""The repository rule host_repository: facts about Bazel and this machine that the rules need while they are loaded.

It downloads nothing, so that a build which only loads the rules does not wait for the packages.
"""

load(":compat.bzl", "is_before", "own_global")
load(":pythons.bzl", "PYTHONS_JSON", "pythons_on_path")

_BUILD = """\
exports_files(["host.bzl", "{pythons}"], visibility = ["//visibility:public"])
"""

_HOST = '''\
"""About this Bazel and this machine. Made by rules_executorch."""
{loads}
# An interpreter on the PATH of the repository rules. Empty if there is none.
PYTHON = {python}

# The providers of Python libraries: Bazel's own, if it has one, and that of the attribute `py_info`.
PY_INFOS = [py_info for py_info in [{infos}] if py_info]

# The provider of C++ libraries and the functions for them, if this Bazel has C++ rules of its own.
CC_COMMON = {cc_common}
CC_INFO = {cc_info}

# The function that makes a group of actions with an execution platform of its own, if this Bazel has it.
EXEC_GROUP = {exec_group}

# The platform of this machine.
HOST_PLATFORM = {platform}
'''

def _host_repository_impl(repository_ctx):
    py_info = repository_ctx.attr.py_info
    repository_ctx.file("BUILD", _BUILD.format(pythons = PYTHONS_JSON), executable = False)
    repository_ctx.file(PYTHONS_JSON, pythons_on_path(repository_ctx), executable = False)
    repository_ctx.file("host.bzl", _HOST.format(
        cc_common = own_global(repository_ctx, "cc_common"),
        cc_info = own_global(repository_ctx, "CcInfo"),
        exec_group = "None" if is_before(repository_ctx, 5) else "exec_group",
        infos = ", ".join([own_global(repository_ctx, "PyInfo")] + (["_PyInfo"] if py_info else [])),
        python = repr(str(repository_ctx.which("python3") or "")),
        platform = repr(repository_ctx.attr.platform),
        loads = "\nload(\"{}\", _PyInfo = \"PyInfo\")\n".format(py_info) if py_info else "",
    ), executable = False)

host_repository = repository_rule(
    implementation = _host_repository_impl,
    doc = "What the rules have to know about Bazel and this machine.",
    attrs = {
        "platform": attr.string(
            doc = "The label of this machine's platform. It is another one with WORKSPACE files than with MODULE.bazel.",
            mandatory = True,
        ),
        "py_info": attr.label(
            doc = "A `.bzl` file with a `PyInfo`, such as `@rules_python//python:py_info.bzl`, for Python rules that do " +
                  "not provide Bazel's own.",
        ),
    },
    configure = True,
    # The paths of interpreters. A PATH changes often, so they are not in the repository of the packages.
    environ = ["PATH"],
)
