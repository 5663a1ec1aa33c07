"""Evaluates the rules for Buck2 without Buck2: with its interpreter, starlark-rust, and a stub of its API."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import starlark

REPOSITORY = Path(__file__).resolve().parents[2]
API = Path(__file__).with_name("api.star")
_LIBRARY = starlark.LibraryExtension
_EXTENSIONS = [_LIBRARY.StructType, _LIBRARY.RecordType, _LIBRARY.Typing, _LIBRARY.Json]
_PUBLIC = re.findall(r"^(?:def )?([A-Za-z]\w*)(?: = |\()", API.read_text("utf-8"), re.MULTILINE)

# What evaluates the rules of a package in order, given as a template.
_ANALYSIS = """
load("api", "dependency", "make_label", "make_target", "render", "DefaultInfo", "ExternalRunnerTestInfo", "RunInfo",
     "ValidationInfo", "export_file")
{loads}
RULES = {{each(stub_analyze = "key"): each for each in [export_file, {rules}]}}

def analyze(targets):
    log, found, artifacts = [], {{}}, {{}}

    def resolve(raw, target):
        label = raw if "//" in raw else "{{}}//{{}}{{}}".format(target.cell, target.package, raw)
        label = label.removeprefix("@")
        label = "root" + label if label.startswith("//") else label
        return found[label]

    for each in targets:
        target = make_target(each["cell"], each["package"], each["name"], resolve, artifacts)
        label = "{{}}//{{}}:{{}}".format(each["cell"], each["package"], each["name"])
        found[label] = RULES[each["rule"]](stub_analyze = (target, log), **each["attributes"])
    return struct(log = log, found = found)

def sub_targets(info, prefix):
    named = {{prefix: [file.path for file in ([info.default_output] if info.default_output else info.default_outputs)]}}
    for name, providers in info.sub_targets.items():
        for label, files in sub_targets(providers[0], "{{}}[{{}}]".format(prefix, name)).items():
            named[label] = files
    return named

def summary(targets):
    result = analyze(targets)
    files, runs, tests, validations = {{}}, {{}}, {{}}, {{}}
    for label, dependency in result.found.items():
        info = dependency.get(DefaultInfo)
        if info.default_outputs:
            files.update(sub_targets(info, label))
        if dependency.get(RunInfo):
            runs[label] = render(dependency.get(RunInfo))
        if dependency.get(ExternalRunnerTestInfo):
            tests[label] = render(dependency.get(ExternalRunnerTestInfo).command)
        if dependency.get(ValidationInfo):
            validations[label] = [spec.validation_result.path for spec in dependency.get(ValidationInfo).validations]
    return {{"actions": result.log, "files": files, "runs": runs, "tests": tests, "validations": validations}}

summary(TARGETS)
"""


def dialect() -> starlark.Dialect:
    """The dialect of Buck2."""
    dialect = starlark.Dialect.extended()
    dialect.enable_f_strings = True
    dialect.enable_types = starlark.DialectTypes.ENABLE
    dialect.enable_keyword_only_arguments = True
    dialect.enable_positional_only_arguments = True
    dialect.enable_load_reexport = True
    return dialect


def of_buck2() -> list[starlark.LibraryExtension]:
    """What Buck2 adds to Starlark's own functions, without those of its API."""
    return [*_EXTENSIONS, _LIBRARY.EnumType, _LIBRARY.Map, _LIBRARY.Filter, _LIBRARY.Partial, _LIBRARY.Print]


@dataclass
class Buck2:
    """An evaluation of rules and of the BUCK files that use them.

    Attributes:
        edits: Texts to replace in files of the rules, by the path in the repository.
        targets: The targets of all BUCK files that were loaded.
    """

    edits: dict[str, tuple[str, str]] = field(default_factory=dict)
    targets: list[dict[str, Any]] = field(default_factory=list)
    rules: int = 0

    def text(self, path: str) -> str:
        """The text of a file of the rules, with its edit."""
        text = (REPOSITORY / path).read_text("utf-8")
        if path in self.edits:
            old, new = self.edits[path]
            assert text.count(old) == 1, (path, old, text.count(old))
            text = text.replace(old, new)
        return text

    def _record_rule(self) -> int:
        self.rules += 1
        return self.rules

    def _record_target(self, rule: int, attributes: dict[str, Any]) -> None:
        self.targets.append({**self.place, "rule": rule, "name": attributes["name"], "given": attributes})

    def _module(self, callables: dict[str, Callable[..., Any]]) -> starlark.Module:
        module = starlark.Module()
        for name, function in callables.items():
            module.add_callable(name, function)
        return module

    @functools.cached_property
    def globals(self) -> starlark.Globals:
        """The functions of Buck2's dialect that are not in the stub."""
        return starlark.Globals.extended_by(_EXTENSIONS)

    @functools.cached_property
    def api(self) -> starlark.FrozenModule:
        """The stub."""
        module = self._module({"record_rule": self._record_rule, "record_target": self._record_target})
        starlark.eval(module, starlark.parse("api.star", API.read_text("utf-8"), dialect()), self.globals)
        return module.freeze()

    @staticmethod
    def parsed(name: str, text: str, without: AbstractSet[str] = frozenset()) -> starlark.AstModule:
        """A file that sees the stub's names but some, with the lines that it has."""
        symbols = ", ".join(f'"{each}"' for each in _PUBLIC if each not in without)
        return starlark.parse(name, f'load("api", {symbols}); {text}', dialect())

    @functools.cached_property
    def loaded(self) -> dict[str, starlark.FrozenModule]:
        """The files of the rules that are loaded, by their path in the repository."""
        return {}

    def load(self, path: str) -> starlark.FrozenModule:
        """Loads a file of the rules."""
        if path not in self.loaded:
            module = self._module({"glob": self._glob})
            starlark.eval(module, self.parsed(path, self.text(path)), self.globals, self._loader(path))
            self.loaded[path] = module.freeze()
        return self.loaded[path]

    def _loader(self, path: str) -> starlark.FileLoader:
        def find(label: str) -> starlark.FrozenModule:
            if label == "api":
                return self.api
            if label.endswith("rules:defs.bzl"):  # the examples' BUILD files load Bazel's
                label = "//contrib/buck2:defs.bzl"
            package, _, name = label.rpartition("//")[2].partition(":") if "//" in label else ("", "", label[1:])
            return self.load(f"{package}/{name}" if "//" in label else f"{path.rpartition('/')[0]}/{name}")

        return starlark.FileLoader(find)

    def _glob(self, include: list[str], exclude: list[str] | None = None, allow_empty: bool = True) -> list[str]:
        directory = self.directory
        return sorted(
            {
                str(each.relative_to(directory))
                for pattern in include
                for each in directory.glob(pattern)
                if each.is_file()
            }
        )

    def build_file(self, file: Path, package: str, cell: str = "root") -> None:
        """Evaluates a BUCK file, or a BUILD file that uses only what both build systems have."""
        self.place, self.directory = {"package": package, "cell": cell}, file.parent
        functions: dict[str, Callable[..., Any]] = {"glob": self._glob, "exports_files": self._exports_files}
        module = self._module({**functions, **dict.fromkeys(_ONLY_BAZEL, lambda *given, **more: None)})
        text = re.sub(f'"({"|".join(_ONLY_BAZEL)})",?|\\btags = \\[[^]]*\\],', "", file.read_text("utf-8"))
        starlark.eval(module, self.parsed(str(file), text), self.globals, self._loader(str(file)))

    def _exports_files(self, names: list[str]) -> None:
        self.targets += [
            {**self.place, "rule": 1, "name": name, "given": {"name": name, "src": name}} for name in names
        ]

    def analyze(self) -> dict[str, Any]:
        """Runs the rules of all targets, each after those that it depends on.

        Returns:
            The actions, the files of targets and sub-targets, the commands of runs and tests, the validations.
        """
        names = {path: re.findall(r"^([a-z]\w+) = rule\(", self.text(path), re.MULTILINE) for path in self.loaded}
        loads = "\n".join(
            f'load("//{path.rpartition("/")[0]}:{path.rpartition("/")[2]}", {", ".join(map(json.dumps, each))})'
            for path, each in names.items()
            if each
        )
        rules = ", ".join(name for each in names.values() for name in each)
        targets = [
            {**each, "attributes": {k: v for k, v in each["given"].items() if k not in ("name", "visibility")}}
            for each in self._ordered()
        ]
        module = starlark.Module()
        module["TARGETS"] = targets
        ast = starlark.parse("analysis", _ANALYSIS.format(loads=loads, rules=rules), dialect())
        result = starlark.eval(module, ast, self.globals, self._loader("analysis"))
        assert isinstance(result, dict)
        return result

    def _ordered(self) -> list[dict[str, Any]]:
        known = {f"{each['cell']}//{each['package']}:{each['name']}": each for each in self.targets}
        done: dict[str, dict[str, Any]] = {}

        def visit(label: str) -> None:
            if label in done or label not in known:
                return
            target = known[label]
            for text in _strings([*target["given"].values(), *_DEFAULTS]):
                where = text.removeprefix("@")
                if where.startswith(":"):
                    where = f"{target['cell']}//{target['package']}{where}"
                elif where.startswith("//"):
                    where = target["cell"] + where
                if (
                    where != label
                    and target["cell"] != "rules_executorch"
                    and not (target["cell"] == "toolchains" and where == _DEFAULTS[0])
                ):
                    visit(where)
            done[label] = target

        for label in known:
            visit(label)
        return list(done.values())


_DEFAULTS = ("toolchains//:executorch", "rules_executorch//toolchain:sources")
_ONLY_BAZEL = ("executorch_named_data", "executorch_package", "executorch_push", "filegroup")


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for each in value.items() for text in _strings(list(each))]
    return [text for each in value for text in _strings(each)] if isinstance(value, list) else []
