"""Reads the project's Starlark without Bazel: its syntax is a subset of Python's."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = ("rules", "rules/private", "toolchain", "toolchain/etbuild")


def bzl_files() -> list[str]:
    """Returns all .bzl files of the rules, as paths in the repository."""
    return sorted(str(path.relative_to(REPOSITORY)) for name in PACKAGES for path in (REPOSITORY / name).glob("*.bzl"))


def examples() -> dict[str, str]:
    """Returns the examples in the documentation of .bzl files, by the path of the file. Not every file has one."""
    found = {}
    for path in bzl_files():
        text = (REPOSITORY / path).read_text("utf-8")
        blocks = re.findall(r"^( *```starlark\n.*?^ *```)$", text, re.MULTILINE | re.DOTALL)
        assert len(blocks) <= 1, path
        for block in blocks:
            found[path] = "".join(textwrap.dedent(block).splitlines(keepends=True)[1:-1])
    return found
