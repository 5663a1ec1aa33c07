"""Bazel's persistent worker."""
