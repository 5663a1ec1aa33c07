"""The rule python_of_build: the interpreter that Bazel's toolchain resolution gives, or one by its label."""

load(":configuration.bzl", "PythonInfo")

_TOOLCHAIN_TYPE = "@bazel_tools//tools/python:toolchain_type"

def _version(runtime):
    """Returns the version of an interpreter that a Python toolchain names by its path. Fails if it is unknown.

    The `py_runtime` of rules_python can say it; Bazel's own cannot.
    """
    info = getattr(runtime, "interpreter_version_info", None)
    numbers = [getattr(info, part, None) for part in ["major", "minor", "micro"]]
    version = ".".join([str(number) for number in numbers if number != None])
    if not version:
        fail("the Python toolchain names an interpreter by its path, {}, and does not tell its version: {}".format(
            runtime.interpreter_path,
            "write `interpreter_version_info` in its `py_runtime` of rules_python, or name an interpreter by its label",
        ))
    return version

def _python_of_build_impl(ctx):
    interpreter = ctx.attr.interpreter
    if interpreter:
        default = interpreter[DefaultInfo]
        file = default.files_to_run.executable or ctx.files.interpreter[0]
        return [PythonInfo(
            file = file,
            files = depset([file], transitive = [default.files, default.default_runfiles.files]),
            path = "",
            version = "",
        )]
    runtime = ctx.toolchains[_TOOLCHAIN_TYPE].py3_runtime
    if not runtime:
        fail("the Python toolchain has no runtime of Python 3")
    if runtime.interpreter_path:
        return [PythonInfo(
            file = None,
            files = depset(),
            path = runtime.interpreter_path,
            version = _version(runtime),
        )]
    return [PythonInfo(
        file = runtime.interpreter,
        files = depset([runtime.interpreter], transitive = [runtime.files]),
        path = "",
        version = "",
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
