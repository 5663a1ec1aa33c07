"""Bazel's own provider of Python libraries, by the name of rules_python."""

load(":own.bzl", "own_py_info")

PyInfo = own_py_info
