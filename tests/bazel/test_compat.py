"""What the rules do in the versions of Bazel, evaluated without Bazel."""

from __future__ import annotations

import pytest
import starlark

from tests.helpers.workspaces import REPOSITORY

PRELUDE = """
config_common = struct(toolchain_type = None)
native = struct(bazel_version = "{known}")

def metadata(**kwargs):
    return kwargs

OLD = struct()
NEW = struct(watch = None, extension_metadata = metadata)
"""


def evaluate(expression: str, known: str = "") -> object:
    """Returns the value of an expression in the file of differences, for a Bazel that knows a version of its own."""
    source = (REPOSITORY / "rules/private/compat.bzl").read_text("utf-8")
    module = starlark.Module()
    names = starlark.Globals.extended_by([starlark.LibraryExtension.StructType])
    prelude = PRELUDE.replace("{known}", known)
    parsed = starlark.parse("compat.bzl", f"{prelude}{source}\n{expression}", starlark.Dialect.extended())
    return starlark.eval(module, parsed, names)


@pytest.mark.parametrize(
    ("known", "expected"),
    [("7.6.1", "CcInfo"), ("7.7.1", "legacy"), ("9.0.0", "legacy"), ("10.0.0-pre.1", "legacy"), ("", "legacy")],
)
def test_a_global_is_named_only_where_it_exists(known: str, expected: str) -> None:
    """Without a version it is Debian's 7.7, whose repository rules have `watch`, or its 4.2."""
    legacy = 'getattr(getattr(native, "legacy_globals", None), "CcInfo", None)'
    assert evaluate('own_global(NEW, "CcInfo")', known) == {"legacy": legacy}.get(expected, expected)
    assert evaluate('own_global(OLD, "CcInfo")') == "CcInfo"


@pytest.mark.parametrize(("version", "expected"), [("NEW", {"reproducible": True}), ("OLD", None)])
def test_the_module_extension_says_that_it_is_reproducible(version: str, expected: object) -> None:
    """Otherwise the lockfile of each user would hold its results, such as the addresses of packages."""
    assert evaluate(f"reproducible({version})") == expected
    assert "    return reproducible(module_ctx)\n" in (REPOSITORY / "rules/extensions.bzl").read_text("utf-8")


@pytest.mark.parametrize(
    ("word", "near"),
    [("hugingface", "huggingface"), ("HuggingFace", "huggingface"), ("openvno", "openvino"), ("sbomb", "sbom")]
    + [(word, None) for word in ("", "tensorrt", "coreml")],
)
def test_a_word_that_somebody_meant(word: str, near: str | None) -> None:
    source = (REPOSITORY / "rules/private/spelling.bzl").read_text("utf-8")
    known = ["delta", "ethos-u", "gguf", "huggingface", "openvino", "sbom", "vgf", "watch"]
    parsed = starlark.parse("spelling.bzl", f"{source}\nnearest({word!r}, {known})", starlark.Dialect.extended())
    assert starlark.eval(starlark.Module(), parsed, starlark.Globals.extended_by([])) == near
