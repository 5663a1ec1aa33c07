"""Bazel's own rules of Python, by the names of rules_python."""

py_binary = native.py_binary
py_library = native.py_library
py_test = native.py_test
