"""Stands for rules_python's extension: the interpreter is the one that PYTHON_3_11 names."""

_HOST = """\
exports_files(["python"], visibility = ["//visibility:public"])
"""

_HUB = """\
load("@bazel_tools//tools/python:toolchain.bzl", "py_runtime_pair")

py_runtime(
    name = "runtime",
    files = glob(
        ["lib/**"],
        exclude = ["lib/*/site-packages/**", "lib/*/test/**", "**/__pycache__/**", "**/* *"],
    ),
    interpreter = "bin/python3.11",
    python_version = "PY3",
)

py_runtime_pair(
    name = "pair",
    py3_runtime = ":runtime",
)

toolchain(
    name = "python_3_11",
    toolchain = ":pair",
    toolchain_type = "@bazel_tools//tools/python:toolchain_type",
)
"""

def _prefix(repository_ctx):
    return repository_ctx.path(repository_ctx.os.environ["PYTHON_3_11"]).realpath.dirname.dirname

def _host_impl(repository_ctx):
    repository_ctx.symlink(_prefix(repository_ctx).get_child("bin", "python3.11"), "python")
    repository_ctx.file("BUILD", _HOST)

_host = repository_rule(implementation = _host_impl, environ = ["PYTHON_3_11"])

def _hub_impl(repository_ctx):
    prefix = _prefix(repository_ctx)
    repository_ctx.symlink(prefix.get_child("bin", "python3.11"), "bin/python3.11")
    repository_ctx.symlink(prefix.get_child("lib", "python3.11"), "lib/python3.11")
    repository_ctx.file("BUILD", _HUB)

_hub = repository_rule(implementation = _hub_impl, environ = ["PYTHON_3_11"])

def _python_impl(_module_ctx):
    _host(name = "python_3_11_host")
    _hub(name = "pythons_hub")

python = module_extension(
    implementation = _python_impl,
    tag_classes = {"toolchain": tag_class(attrs = {"is_default": attr.bool(), "python_version": attr.string()})},
)
