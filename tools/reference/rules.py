"""Makes the pages of the rules, macros and providers from the `.bzl` files in `rules/` that users load.

A file has a page. If it does not fit, each of its names has one.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

from tools.reference.markdown import (
    LONGEST_PAGE,
    docstring,
    fence,
    fence_indented,
    first_sentence,
    length,
    link,
    signature,
    table,
)
from tools.reference.markdown import page as markdown_page
from tools.reference.starlark import Call, Loader

_SOURCE = "the docstrings of rules/*.bzl"
_ORDER = ("defs.bzl", "providers.bzl", "cc.bzl", "repositories.bzl", "extensions.bzl")
TOPICS = ("program.bzl", "test.bzl", "package.bzl", "kernels.bzl", "toolchain.bzl")
"""The files whose names `defs.bzl` contains."""
_DEFAULTS: dict[str, Any] = {"bool": False, "int": 0, "string": ""}
_KINDS = {
    "rule": "Rule",
    "repository_rule": "Repository rule",
    "provider": "Provider",
    "aspect": "Aspect",
    "module_extension": "Module extension",
}


@dataclass(frozen=True)
class _File:
    """A file that users load.

    Attributes:
        name: Its name.
        doc: Its docstring. That of `defs.bzl` ends with the files by topic.
        names: What it defines, by name. A provider is part of `providers.bzl`, though `defs.bzl` has it too.
    """

    name: str
    doc: str
    names: dict[str, Any]

    @property
    def page(self) -> str:
        return f"rules/{Path(self.name).stem}.md"

    def about(self, name: str) -> list[str]:
        return [block for block in _public(name, self.names[name], f"@rules_executorch//rules:{self.name}") if block]

    def whole(self) -> list[str]:
        """The content of the page of the file."""
        named = [block for name in self.names for block in (f"## {name}", *self.about(name))]
        return [fence_indented(self.doc, "starlark"), *named]

    @property
    def fits(self) -> bool:
        return length(self.whole()) < LONGEST_PAGE

    def page_of(self, name: str) -> str:
        return self.page if self.fits else f"rules/{name}.md"


def pages(root: Path) -> dict[str, str]:
    """Returns the pages and their index."""
    files = _files(root)
    written = {"rules.md": markdown_page("Rules", _SOURCE, _index(files))}
    for file in files:
        if file.fits:
            written[file.page] = markdown_page(file.name, _SOURCE, file.whole())
            continue
        for name in file.names:
            written[file.page_of(name)] = markdown_page(name, _SOURCE, file.about(name))
    return written


def _files(root: Path) -> list[_File]:
    loader = Loader(root)
    modules = {name: loader.load(root / "rules" / name) for name in _ORDER}
    forgotten = {path.name for path in (root / "rules").glob("*.bzl")} - {*_ORDER, *TOPICS}
    if forgotten:
        raise LookupError(f"add {', '.join(forgotten)} to _ORDER in {Path(__file__).name}")
    providers = modules["providers.bzl"].names
    return [
        _File(
            name,
            module.doc + (_by_topic(loader, root) if name == "defs.bzl" else ""),
            {
                each: value
                for each, value in module.names.items()
                if not each.startswith("_") and (name == "providers.bzl" or each not in providers)
            },
        )
        for name, module in modules.items()
    ]


def _by_topic(loader: Loader, root: Path) -> str:
    modules = {name: loader.load(root / "rules" / name) for name in TOPICS}
    rows = [
        (f"`{name}`", ", ".join(f"`{each}`" for each in module.names if each[0] != "_"))
        for name, module in modules.items()
    ]
    return f"\n\nA build that needs one topic can load the file of it instead:\n\n{table(('file', 'names'), rows)}"


def _index(files: list[_File]) -> Iterator[str]:
    for file in files:
        yield f"## {file.name}"
        yield first_sentence(file.doc) if file.fits else fence_indented(file.doc, "starlark")
        anchor = None if file.fits else ""
        yield table(
            ("name", "", "what it is"),
            [
                (link(name, anchor, file.page_of(name)), _kind(name, value).lower(), _said(file, name))
                for name, value in file.names.items()
            ],
        )


def _said(file: _File, name: str) -> str:
    value = _rule_behind(name, file.names[name])
    doc = (inspect.getdoc(value) or "") if isinstance(value, FunctionType) else getattr(value, "doc", "")
    return first_sentence(doc)


def _kind(name: str, value: Any) -> str:
    value = _rule_behind(name, value)
    if isinstance(value, FunctionType):
        return "Macro" if next(_parameters(value), "") == "name" else "Function"
    return _KINDS[value.function]


def _public(name: str, value: Any, file: str) -> Iterator[str]:
    value = _rule_behind(name, value)
    load = fence("starlark", f'load("{file}", "{name}")')
    if isinstance(value, FunctionType):
        yield f"{_kind(name, value)}.\n\n{load}"
        yield signature("starlark", f"{name}({', '.join(_parameters(value))})", f"{file}:{name}")
        yield docstring(inspect.getdoc(value) or "", "starlark")
    elif value.function == "module_extension":
        yield "Module extension."
        yield fence("starlark", f'{name} = use_extension("{file}", "{name}")')
        yield fence_indented(value.doc, "starlark")
        for tag, tag_class in value.arguments["tag_classes"].items():
            yield f"### {name}.{tag}"
            yield fence_indented(tag_class.doc, "starlark")
            yield _attributes(tag_class)
    else:
        yield f"{_KINDS[value.function]}.\n\n{load}"
        yield fence_indented(value.doc, "starlark")
        yield _fields(value) if value.function == "provider" else _attributes(value)


def attributes(name: str, value: Any) -> list[str]:
    """Returns the names that a public name takes: attributes, fields, and a macro's parameters."""
    value = _rule_behind(name, value)
    if isinstance(value, FunctionType):
        return [each for each in inspect.signature(value).parameters if each not in ("args", "kwargs")]
    if value.function == "module_extension":
        tags = value.arguments["tag_classes"].items()
        return [f"{tag}.{key}" for tag, tag_class in tags for key in tag_class.arguments.get("attrs", {})]
    return list(value.arguments.get("fields" if value.function == "provider" else "attrs") or {})


def _rule_behind(name: str, value: Any) -> Any:
    """Returns the rule of the same name that a macro calls after setting attributes; otherwise the value."""
    return getattr(value, "__globals__", {}).get("_" + name, value)


def _parameters(macro: FunctionType) -> Iterator[str]:
    stars: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    for parameter in inspect.signature(macro).parameters.values():
        default = "" if parameter.default is inspect.Parameter.empty else f" = {parameter.default!r}"
        yield f"{stars.get(parameter.kind, '')}{parameter.name}{default}"


def _attributes(rule: Call) -> str:
    attributes = {
        name: value
        for name, value in rule.arguments.get("attrs", {}).items()
        if not name.startswith("_") and value.function not in ("output", "output_list")  # macros set these
    }
    rows = [(f"`{name}`", value.function, _default(value), value.doc) for name, value in attributes.items()]
    if rule.function == "rule":
        rows.insert(0, ("`name`", "name", "required", "Name of the target."))
    return table(("attribute", "type", "default", "description"), rows)


def _default(attribute: Call) -> str:
    if attribute.arguments.get("mandatory"):
        return "required"
    kind = attribute.function
    empty = [] if kind.endswith("_list") else {} if kind.endswith("_dict") else _DEFAULTS.get(kind)
    default = attribute.arguments.get("default", empty)
    return f"`{default if default is None or isinstance(default, bool) else json.dumps(default)}`"


def _fields(provider: Call) -> str:
    fields = provider.arguments["fields"]
    return table(("field", "content"), [(f"`{name}`", said) for name, said in fields.items()])
