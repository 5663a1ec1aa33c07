"""What the rules do in the versions of Bazel, evaluated without Bazel."""

from __future__ import annotations

import pytest
import starlark

from tests.helpers.workspaces import REPOSITORY

PRELUDE = """
config_common = struct(toolchain_type = None)

def metadata(**kwargs):
    return kwargs

OLD = struct()
NEW = struct(watch = None, extension_metadata = metadata)
"""


@pytest.mark.parametrize(("version", "expected"), [("NEW", {"reproducible": True}), ("OLD", None)])
def test_the_module_extension_says_that_it_is_reproducible(version: str, expected: object) -> None:
    """Otherwise the lockfile of each user would hold its results, such as the addresses of packages."""
    source = (REPOSITORY / "rules/private/compat.bzl").read_text("utf-8")
    module = starlark.Module()
    names = starlark.Globals.extended_by([starlark.LibraryExtension.StructType])
    parsed = starlark.parse("compat.bzl", f"{PRELUDE}{source}\nreproducible({version})", starlark.Dialect.extended())
    assert starlark.eval(module, parsed, names) == expected
    assert "    return reproducible(module_ctx)\n" in (REPOSITORY / "rules/extensions.bzl").read_text("utf-8")
