"""Buck2's own rules, its prelude, read and type-checked by its interpreter against the stub of `evaluation.py`.

`BUCK2_SOURCE` is a checkout of github.com/facebook/buck2. Without it, these tests are skipped. They show whether the
stub's functions take what Meta's rules write: a parameter of another name, or a value of another type, is an error.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import starlark

from .evaluation import API, Buck2, dialect, of_buck2

NOT_FOUND = re.compile(r"Variable `\w+` not found|Internal error: unresolved ident")
OTHER_PARAMETER = re.compile(r"Unexpected parameter named `(\w+)`")
NOT_IN_STUB = {"absolute_prefix", "ignore_artifacts", "prepend", "quote", "relative_to", "replace_regex"}
"""Parameters of `cmd_args` that no rule here uses."""
NOT_STARLARK = {"platforms/apple/build_mode.bzl", "platforms/apple/platforms_map.bzl"}
"""Files of the prelude that a tool of Meta's rewrites before Buck2 reads them."""
GOLDEN = "tests/core/docs/test_builtin_docs_data/buck2-golden-docs/build"
NO_SOURCE = "BUCK2_SOURCE does not name a checkout of github.com/facebook/buck2"


@pytest.fixture(scope="module")
def source() -> Path:
    if not os.environ.get("BUCK2_SOURCE"):
        pytest.skip(NO_SOURCE)
    return Path(os.environ["BUCK2_SOURCE"])


class Prelude:
    """The files of the prelude, each parsed and type-checked once."""

    def __init__(self, root: Path) -> None:
        self.parsed: dict[str, starlark.AstModule] = {}
        self.refused: set[str] = set()
        self.errors: list[str] = []
        self.checked: dict[str, starlark.Interface] = {}
        self.globals = starlark.Globals.extended_by(of_buck2())
        for file in sorted(root.rglob("*.bzl")):
            path = file.relative_to(root).as_posix()
            try:
                self.parsed[path] = self._parse(path, file.read_text("utf-8"))
            except starlark.StarlarkError:
                self.refused.add(path)
        stub = starlark.parse("api.star", API.read_text("utf-8"), dialect())
        self.api = stub.typecheck(self.globals, {})[1]

    def _parse(self, path: str, text: str) -> starlark.AstModule:
        """Parses a file that sees the names of the stub, besides those that it defines or loads."""
        loaded = "\n".join(re.findall(r"^load\([^)]*\)", text, re.MULTILINE))
        own = {*re.findall(r"^(?:def )?(\w+) *[=(]", text, re.MULTILINE), *re.findall(r'"(\w+)"', loaded)}
        return Buck2.parsed(path, text, without=own)

    def check(self, path: str) -> starlark.Interface:
        """Type-checks a file after those that it loads."""
        if path not in self.checked:
            loads = {"api": self.api}
            for each in self.parsed[path].loads():
                package, _, name = each.module_id.rpartition("//")[2].partition(":")
                file = (Path(package or Path(path).parent) / name).as_posix() if name else ""
                if file in self.parsed and file != path:
                    loads[each.module_id] = self.check(file)
            errors, self.checked[path], _ = self.parsed[path].typecheck(self.globals, loads)
            self.errors += [str(error) for error in errors]
        return self.checked[path]


def test_the_stub_takes_what_the_prelude_writes(source: Path) -> None:
    prelude = Prelude(source / "prelude")
    for path in prelude.parsed:
        prelude.check(path)
    assert prelude.refused <= NOT_STARLARK
    assert len(prelude.parsed) > 500
    wrong = [error for error in prelude.errors if not NOT_FOUND.search(error)]
    other = {found[1] for error in wrong if (found := OTHER_PARAMETER.search(error))}
    assert other <= NOT_IN_STUB, other
    assert [error for error in wrong if not OTHER_PARAMETER.search(error)] == []


def test_a_difference_between_the_stub_and_buck2_is_found(source: Path, tmp_path: Path) -> None:
    (tmp_path / "a.bzl").write_text("# one\ndef f(x: str):\n    return cmd_args(x, delim = 3)\n")
    (tmp_path / "b.bzl").write_text('load(":a.bzl", "f")\n\ndef g():\n    return f(cmd_args("a", delimiter = 4))\n')
    prelude = Prelude(tmp_path)
    prelude.check("b.bzl")
    assert len(prelude.errors) == 2


def test_buck2_documents_what_the_rules_call(source: Path) -> None:
    """The functions of actions and attributes, and the providers. Buck2's own tests write this documentation."""
    rules = "".join(path.read_text("utf-8") for path in (API.parents[2] / "contrib/buck2").glob("*.bzl"))
    for page, prefix, form in (
        ("AnalysisActions", "AnalysisActions.", r"ctx\.actions\.(\w+)"),
        ("attrs", "", r"\battrs\.(\w+)\("),
    ):
        text = (source / GOLDEN / f"{page}.md").read_text("utf-8").replace("\\", "")
        documented = set(re.findall(rf"^## {re.escape(prefix)}(\w+)", text, re.MULTILINE))
        assert {*re.findall(form, rules)} <= documented
    ours = set(re.findall(r"^(\w+Info) = provider\(", rules, re.MULTILINE))
    used = set(re.findall(r"\b(\w+Info)\(", rules)) - ours
    assert {name for name in used if not (source / GOLDEN / f"{name}.md").exists()} == set()
