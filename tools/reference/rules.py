"""Makes the page of the rules, macros and providers from the `.bzl` files in `rules/` that users load."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

from tools.reference.markdown import docstring, fence, fence_indented, signature, table
from tools.reference.markdown import page as markdown_page
from tools.reference.starlark import Call, Loader

_MAIN = "defs.bzl"  # a name in several files is described as part of this one
_DEFAULTS: dict[str, Any] = {"bool": False, "int": 0, "string": ""}
_KINDS = {"rule": "Rule", "repository_rule": "Repository rule", "provider": "Provider", "aspect": "Aspect"}


def page(root: Path) -> str:
    """Returns the page."""
    return markdown_page("Rules", "the docstrings of rules/*.bzl", _blocks(root))


def _blocks(root: Path) -> Iterator[str]:
    loader = Loader(root)
    described: list[Any] = []
    for path in sorted((root / "rules").glob("*.bzl"), key=lambda path: (path.name != _MAIN, path.name)):
        module = loader.load(path)
        names = {
            name: value
            for name, value in module.names.items()
            if not name.startswith("_") and not any(value is other for other in described)
        }
        described += names.values()
        if module.doc:
            yield f"## {path.name}"
            yield fence_indented(module.doc, "starlark")
        for name, value in names.items():
            yield f"### {name}"
            yield from _public(name, value, f"@rules_executorch//rules:{path.name}")
            yield module.comments.get(name, "")


def _public(name: str, value: Any, file: str) -> Iterator[str]:
    value = _rule_behind(name, value)
    load = fence("starlark", f'load("{file}", "{name}")')
    if isinstance(value, FunctionType):
        yield f"{'Macro' if next(_parameters(value), '') == 'name' else 'Function'}.\n\n{load}"
        yield signature("starlark", f"{name}({', '.join(_parameters(value))})", f"{file}:{name}")
        yield docstring(inspect.getdoc(value) or "", "starlark")
    elif isinstance(value, Call) and value.function == "module_extension":
        yield "Module extension."
        yield fence("starlark", f'{name} = use_extension("{file}", "{name}")')
        yield fence_indented(value.doc, "starlark")
        for tag, tag_class in value.arguments["tag_classes"].items():
            yield f"#### {name}.{tag}"
            yield fence_indented(tag_class.doc, "starlark")
            yield _attributes(tag_class)
    elif isinstance(value, Call):
        yield f"{_KINDS[value.function]}.\n\n{load}"
        yield fence_indented(value.doc, "starlark")
        yield _fields(value) if value.function == "provider" else _attributes(value)
    else:
        yield f"Constant.\n\n{load}"
        if isinstance(value, dict):
            yield f"Keys: {', '.join(f'`{key}`' for key in value)}."


def attributes(name: str, value: Any) -> list[str]:
    """Returns the names that a public name takes: attributes, fields, and a macro's parameters."""
    value = _rule_behind(name, value)
    if isinstance(value, FunctionType):
        return [each for each in inspect.signature(value).parameters if each not in ("args", "kwargs")]
    if not isinstance(value, Call):
        return []
    if value.function == "module_extension":
        tags = value.arguments["tag_classes"].items()
        return [f"{tag}.{key}" for tag, tag_class in tags for key in tag_class.arguments.get("attrs", {})]
    return list(value.arguments.get("fields" if value.function == "provider" else "attrs") or {})


def _rule_behind(name: str, value: Any) -> Any:
    """Returns the rule of the same name that a macro calls after it has set some attributes; else the value."""
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
