"""The rule python_of_build: the interpreter that Bazel's toolchain resolution gives, or one by its label."""

load(":configuration.bzl", "PythonInfo")

_TOOLCHAIN_TYPE = "@bazel_tools//tools/python:toolchain_type"

def _python_of_build_impl(ctx):
    interpreter = ctx.attr.interpreter
    if interpreter:
        default = interpreter[DefaultInfo]
        file = default.files_to_run.executable or ctx.files.interpreter[0]
        return [PythonInfo(
            file = file,
            files = depset([file], transitive = [default.files, default.default_runfiles.files]),
            path = "",
        )]
    runtime = ctx.toolchains[_TOOLCHAIN_TYPE].py3_runtime
    if not runtime:
        fail("the Python toolchain has no runtime of Python 3")
    if runtime.interpreter_path:
        return [PythonInfo(file = None, files = depset(), path = runtime.interpreter_path)]
    return [PythonInfo(
        file = runtime.interpreter,
        files = depset([runtime.interpreter], transitive = [runtime.files]),
        path = "",
    )]

python_of_build = rule(
    implementation = _python_of_build_impl,
    attrs = {
        "interpreter": attr.label(
            doc = "The interpreter. Default: that of the Python toolchain that Bazel resolves.",
            allow_files = True,
        ),
    },
    doc = "The interpreter of a driver.",
    toolchains = [_TOOLCHAIN_TYPE],
)
