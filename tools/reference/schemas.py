"""Makes the schemas of manifests and of plans, and the types of a manifest's data, from `etbuild.plan`."""

from __future__ import annotations

import inspect
import json
import keyword
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, is_typeddict

import yaml

from etbuild import plugins
from etbuild.plan import kinds, parts, step_plans
from etbuild.plan.part import DRIVER_ONLY, PLAN_ONLY, Part, PluginKeys, Says
from etbuild.plan.plan import Plan
from tools.reference import manifest_forms
from tools.reference.schema_words import Schema

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean"}
_PLUGIN_PARTS: list[type[Part]] = [PluginKeys(place).kind for place in plugins.group("manifest_keys")]
_MODULES = [parts, manifest_forms, *(sys.modules[part.__module__] for part in _PLUGIN_PARTS)]
_NAMES = {name: value for module in _MODULES for name, value in vars(module).items()}
_ALIASES = {_NAMES[name]: name for name in ("Calibration", "Example", "Shapes")}
_EXAMPLES = re.compile(r"(?:^| )For example ((?:`[^`]*`(?:, |(?=\.$)))+)\.$")
_KIND_TEXTS: dict[str, Schema] = {}
_OF_CLASSES = ("section", "also", "definition", "needs", "is_open")
_WIDTH = 116
_PLACE = {"type": "array", "items": {"type": ["string", "integer"]}}
_NUMBER = {"type": "integer", "minimum": 1}
_POSITION = {
    "type": "array",
    "prefixItems": [_PLACE, {"type": "string"}, _NUMBER, _NUMBER],
    "minItems": 4,
    "maxItems": 4,
}


def files() -> dict[str, str]:
    """The files that are made from classes, by their paths in the repository."""
    return {
        "schemas/model.schema.json": _pretty(_Manifests().document(), "") + "\n",
        "schemas/plan.schema.json": _pretty(_Plans().document(), "") + "\n",
        **types(),
    }


def of_manifest(part: type[Part]) -> Schema:
    """The schema of a section. It may refer to definitions of the whole schema."""
    return _Manifests().of(part)


def of_plan(part: type[Part]) -> Schema:
    """The schema of a part in plans. It may refer to definitions of the whole schema."""
    plans = _Plans()
    return plans.definitions[plans.of(part)["$ref"].rpartition("/")[2]]


def _pretty(value: Any, margin: str) -> str:
    """JSON, with what fits a line on one line."""
    text = json.dumps(value, ensure_ascii=False)
    if len(margin) + len(text) <= _WIDTH or not isinstance(value, (dict, list)):
        return text
    keys = [json.dumps(key) + ": " for key in value] if isinstance(value, dict) else [""] * len(value)
    entries = value.values() if isinstance(value, dict) else value
    inner = margin + "  "
    lines = [f"{inner}{key}{_pretty(entry, inner)}" for key, entry in zip(keys, entries, strict=True)]
    return ",\n".join(lines).join(["{\n", f"\n{margin}}}"] if isinstance(value, dict) else ["[\n", f"\n{margin}]"])


def _unfolded(kind: Any) -> tuple[Any, list[Says]]:
    """A type without `Annotated`, and its description. For a plug-in's section, the type is its class."""
    if get_origin(kind) is not Annotated:
        return kind, []
    base, *said = get_args(kind)
    classes = [each.kind for each in said if isinstance(each, PluginKeys)]
    return [*classes, base][0], [each for each in said if isinstance(each, Says)] or [Says()]


def _members(kind: Any) -> tuple[Any, ...]:
    """The types of a union; empty for another type."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else ()


def _fields(part: type[Part]) -> Iterator[tuple[str, str, Any]]:
    """The fields of a part that manifests may have: the key, the name and the type of each.

    A None in the type means that the key may be missing, unless it is inside `Annotated`.
    """
    for name in part._FIELDS:
        kind = part.kinds()[name]
        if NoneType in _members(kind):
            kind = Union[tuple(each for each in _members(kind) if each is not NoneType)]  # noqa: UP007
        if PLAN_ONLY not in _unfolded(kind)[1]:
            yield part._KEYS.get(name, name), name, kind


def _said(text: str) -> Schema:
    """A description and the examples at its end, as keywords."""
    found = _EXAMPLES.search(text)
    examples = [yaml.safe_load(each) for each in re.findall(r"`([^`]*)`", found[1])] if found else []
    description = text[: found.start()] if found else text
    return {**({"description": description} if description else {}), **({"examples": examples} if examples else {})}


def _documented(documented: Any) -> tuple[Schema, dict[str, Schema]]:
    """The descriptions of a class or module and of its attributes, from its docstring."""
    head, _, attributes = inspect.cleandoc(documented.__dict__.get("__doc__") or "").partition("\nAttributes:\n")
    entries = [entry.strip().partition(": ") for entry in re.split(r"\n(?=    \w)", "\n" + attributes)[1:]]
    return _said(_one_line(head.split("\n\n")[0])), {name: _said(_one_line(text)) for name, _, text in entries}


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _described(node: Schema, said: Schema) -> Schema:
    """A schema with another description, including its examples."""
    bare = {key: value for key, value in node.items() if key not in ("description", "examples")}
    return {**said, **bare} if said else node


_KIND_TEXTS.update(_documented(kinds)[1])


class _Schemas:
    """A schema of types, with the definitions that it refers to."""

    def __init__(self) -> None:
        self.definitions: dict[str, Schema] = {}

    def of(self, kind: Any) -> Schema:
        """The schema of a type."""
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is Annotated:
            return self.of_annotated(*_unfolded(kind))
        if isinstance(kind, str):  # an alias that contains itself
            return self.of_forward(kind)
        if _members(kind):
            return {"anyOf": [each for one in arguments for each in self.alternatives(one)]}
        if origin is Literal:
            return {"enum": [*arguments]}
        if origin is tuple:
            return {"type": "array", "items": self.of(arguments[0])}
        if origin in (dict, Mapping):
            entries = {} if arguments[1] in (Any, object) else {"additionalProperties": self.of(arguments[1])}
            return {"type": "object", **self.of_names(arguments[0]), **entries}
        if kind is NoneType:
            return {"type": "null"}
        if isinstance(kind, type) and issubclass(kind, Part):
            return self.of_part(kind)
        return {"type": _PLAIN[kind]} if kind in _PLAIN else {}

    def of_annotated(self, kind: Any, says: list[Says]) -> Schema:
        raise NotImplementedError

    def of_forward(self, name: str) -> Schema:
        raise NotImplementedError

    def of_names(self, kind: Any) -> Schema:
        """The schema of the keys of a mapping."""
        return {"propertyNames": self.of(kind)} if kind is not str else {}

    def of_part(self, part: type[Part]) -> Schema:
        raise NotImplementedError

    def alternatives(self, kind: Any) -> list[Schema]:
        """The schemas of a type inside a union. A description is left to the union."""
        node = _described(self.of(kind), {"description": ""})
        del node["description"]
        return list(node["anyOf"]) if node.keys() == {"anyOf"} else [node]

    def defined(self, name: str, node: Schema) -> Schema:
        """Gives a schema a name. Returns a reference to it."""
        self.definitions[name] = node
        return {"$ref": f"#/$defs/{name}"}


class _Manifests(_Schemas):
    """The schema of manifests."""

    def document(self) -> Schema:
        """The whole schema."""
        about = {
            "$schema": _DIALECT,
            "$id": "urn:rules-executorch:schema:model:v1",
            "title": "rules_executorch manifest",
        }
        return {**about, **self.of(manifest_forms.Manifest), "$defs": self.definitions}

    def of_annotated(self, kind: Any, says: list[Says]) -> Schema:
        written = says[0].written
        node = self.of(kind if written is None else _NAMES[written] if isinstance(written, str) else written)
        for each in says:
            given = {key: value for key, value in each.keywords.items() if value is not ...}
            keywords = {key: self.of(value) if isinstance(value, type) else value for key, value in given.items()}
            texts = _said(each.text) or _KIND_TEXTS.get(each.name or "", {})
            node = _described({**node, **keywords}, texts)
            if each.one:
                node = {"anyOf": [*self.alternatives(get_args(kind)[0]), node]}
            if each.name is not None:
                node = self.defined(each.name, node)
        return node

    def of_forward(self, name: str) -> Schema:
        return {"$ref": f"#/$defs/{_NAMES[name]._MANIFEST['definition']}"}

    def of_part(self, part: type[Part]) -> Schema:
        own = {key: value for key, value in part._MANIFEST.items() if key not in _OF_CLASSES}
        name, also = part._MANIFEST.get("definition"), part._MANIFEST.get("also")
        node: Schema = {"$ref": f"#/$defs/{name}"}
        if name not in self.definitions:
            self.definitions |= {} if name is None else {name: {}}  # it may contain itself
            about = _documented(part)[0] if name is not None or also is None else {}
            content = {**about, **self._object(part), **own}
            node = content if name is None else self.defined(name, content)
        return node if also is None else {"anyOf": [*self.alternatives(also), node]}

    def _object(self, part: type[Part]) -> Schema:
        texts = {name: text for base in reversed(part.__mro__) for name, text in _documented(base)[1].items()}
        fields = [each for each in _fields(part) if DRIVER_ONLY not in _unfolded(each[2])[1]]
        fields.sort(key=lambda field: [*texts, field[1]].index(field[1]))
        why = part._MANIFEST.get("is_open")
        needed = [key for key, name, _ in fields if name not in part._DEFAULTS]
        required = part._MANIFEST.get("needs", needed)
        return {
            "type": "object",
            **({"required": required} if required else {}),
            **({"$comment": f"Open: {why}."} if why else {"additionalProperties": False}),
            "properties": {
                key: {**_described(self.of(kind), texts.get(name, {})), **self._default(part, name, kind)}
                for key, name, kind in fields
            },
        }

    def _default(self, part: type[Part], name: str, kind: Any) -> Schema:
        """The default of a field, if its type does not say it. The default of a section is an empty section."""
        value, says = part._DEFAULTS.get(name), _unfolded(kind)[1]
        if value is None or any("default" in each.keywords for each in says):
            return {}
        if isinstance(value, Part):
            return {} if "default" in value._MANIFEST else {"default": {}}
        return {"default": [*value] if isinstance(value, tuple) else value}


class _Plans(_Schemas):
    """The schema of plans: names, and the types of their values."""

    as_written = False  # true for a section that a plan copies from the manifest

    def document(self) -> Schema:
        """The whole schema."""
        for plan in (
            Plan,
            step_plans.ExportPlan,
            step_plans.MethodPlan,
            step_plans.LowerPlan,
            plugins.load("step_plan", "compare"),
        ):
            self.of_part(plan)
        self.defined("positions", {"type": "array", "items": _POSITION})
        return {
            "$schema": _DIALECT,
            "$id": "urn:rules-executorch:schema:plan:v2",
            "title": "Plans",
            "description": "A manifest with defaults filled in: the whole plan, and the parts that single steps read. "
            "`etbuild plan` writes them.",
            "$defs": self.definitions,
        }

    def of(self, kind: Any) -> Schema:
        """The schema of a type. An alias with a reader of its own gets a name, since it may contain itself."""
        if is_typeddict(kind):
            self.as_written = True
            node = self.of_part(vars(manifest_forms)[kind.__name__])
            self.as_written = False
            return node
        if kind in _ALIASES:
            return self._named(_ALIASES[kind], lambda: super(_Plans, self).of(kind))
        named = [each for each in _members(kind) if isinstance(each, type) and issubclass(each, Part)]
        if len(named) > 1:
            return self._tagged(named)
        node = super().of(kind)
        types = [each["type"] for each in node.get("anyOf", []) if each.keys() == {"type"}]
        return {"type": types} if types and len(types) == len(node["anyOf"]) else node

    def _tagged(self, members: list[type[Part]]) -> Schema:
        """The schema of a choice of parts. Each has a first key that no other has. The last one may have no keys."""
        tags = {part: [*part._PLAN.get("properties", part._FIELDS[:1])] for part in members}
        keys = [key for part in members for key in tags[part]]
        one_of = {"if": {"type": "object"}, "then": {"oneOf": [{"required": [key]} for key in keys]}}
        given = [{"if": {"required": [key]}, "then": self.of(part)} for part in members for key in tags[part]]
        return {"type": "object", **(one_of if all(tags.values()) else {}), "allOf": given}

    def of_annotated(self, kind: Any, says: list[Says]) -> Schema:
        node = self.of(kind)
        if says[0].plan is not None:
            return dict(says[0].plan)
        kept = ("group", "minimum", "type")
        keywords = {key: value for each in says for key, value in each.keywords.items() if key in kept}
        return self._kind(says[0]) if says[0].name == "programName" else {**node, **keywords}

    def of_forward(self, name: str) -> Schema:
        return self.of(vars(parts)[name])

    def of_names(self, kind: Any) -> Schema:
        names = [each for each in _unfolded(kind)[1] if each.name is not None]
        return {"propertyNames": self._kind(names[0])} if names else {}

    def _kind(self, says: Says) -> Schema:
        name = str(says.name)
        return self.defined(name, {**_KIND_TEXTS[name], "type": "string", **says.keywords})

    def _named(self, name: str, make: Callable[[], Schema]) -> Schema:
        name = name[0].lower() + name[1:]
        if name not in self.definitions:
            self.definitions[name] = {}  # it may contain itself
            self.definitions[name] = make()
        return {"$ref": f"#/$defs/{name}"}

    def _present(self, kind: Any) -> Schema:
        """The schema of a field that is left out if it is None."""
        found = [each for each in _members(kind) if each is not NoneType]
        return self.of(Union[tuple(found)] if found else kind)  # noqa: UP007

    def of_part(self, part: type[Part]) -> Schema:
        return self._named("Written" * self.as_written + part.__name__, lambda: self._object(part))

    def _object(self, part: type[Part]) -> Schema:
        if "type" in part._PLAN:
            return dict(part._PLAN)
        optional = {*part._FIELDS} if self.as_written else {*part._LEFT_OUT, *part._EITHER}
        fields = [
            (part._KEYS.get(name, name), name, kind) for name, kind in part.kinds().items() if name in part._FIELDS
        ]
        document = {"schema": {"enum": [part.SCHEMA]}} if issubclass(part, step_plans.Document) else {}
        node = {
            "type": "object",
            "required": [*document, *(key for key, name, _ in fields if name not in optional)],
            **({} if document else {"additionalProperties": False}),
            "properties": {
                **document,
                **{key: self._present(kind) if name in optional else self.of(kind) for key, name, kind in fields},
            },
            **part._PLAN,
        }
        return {"anyOf": [{"type": "string"}, node]} if part._SHORT and "to_json" in vars(part) else node


_HEADER = '''"""The types of a manifest's data, one for each section: `make reference` writes them from `etbuild.plan`.

A key that the schema requires is there, and any other one may be missing.
"""

from __future__ import annotations

from typing import Any, TypedDict

Options = dict[str, Any]
"""Values that users choose: keyword arguments of a callable, options of a backend, a Hugging Face configuration."""
Number = int | float
Ranges = list[list[Number] | None]
Shapes = Any
"""Dynamic shapes, in the form of their input: None, a `Dim`, or a list or a mapping of dynamic shapes."""
'''
_PLUGIN_HEADER = '''"""The types of a manifest's data: `make reference` writes them from `{package}.parts`."""

from __future__ import annotations

from typing import TypedDict
'''
_WRITTEN = {NoneType: "None"}
_CORE = "etbuild.manifest"


def types() -> dict[str, str]:
    """The modules `sections` of the core and of plug-ins, by their paths."""
    made = _Types()
    made.of(manifest_forms.Manifest)
    made.written[_CORE]["Partitioners"] = f"Partitioners = {made.of(parts.Partitioners)}\n"
    heads = {package: made.head(package) for package in made.written}
    return {
        f"toolchain/{package.replace('.', '/')}/sections.py": "\n\n".join([heads[package], *texts.values()])
        for package, texts in made.written.items()
    }


class _Types:
    """The types of a manifest's values as Python code.

    Attributes:
        written: The types of sections, by the package whose `sections` has them and by their names.
    """

    def __init__(self) -> None:
        self.written: dict[str, dict[str, str]] = {_CORE: {}}
        self._package = _CORE
        self._imports: dict[str, set[tuple[str, str]]] = {}

    def head(self, package: str) -> str:
        """The beginning of a module."""
        if package == _CORE:
            return _HEADER
        modules = sorted({module for module, _ in self._imports.get(package, ())})
        names = {module: sorted(name for of, name in self._imports[package] if of == module) for module in modules}
        lines = "".join(f"from {module} import {', '.join(names[module])}\n" for module in modules)
        return _PLUGIN_HEADER.format(package=package) + (f"\n{lines}" if lines else "")

    def of(self, kind: Any) -> str:
        """A type of a manifest's value."""
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is Annotated:
            return self._of_annotated(*_unfolded(kind))
        if isinstance(kind, type) and issubclass(kind, Part):
            if "is_open" in kind._MANIFEST:
                return self._named(_CORE, "Options")
            return self._joined([kind._MANIFEST.get("also")], self._name(kind))
        if _members(kind):
            return self._joined(arguments)
        if origin is tuple:
            return f"list[{self.of(arguments[0])}]"
        if origin in (dict, Mapping):
            return self._named(_CORE, "Options") if arguments[1] is Any else f"dict[str, {self.of(arguments[1])}]"
        if kind is float:
            return self._named(_CORE, "Number")
        return kind if isinstance(kind, str) else "str" if origin is Literal else _WRITTEN.get(kind, kind.__name__)

    def _of_annotated(self, kind: Any, says: list[Says]) -> str:
        written, types = says[0].written, says[0].keywords.get("type")
        if says[0].name == "shapes":
            self.of(says[0].keywords["then"])
            return self._named(_CORE, "Shapes")
        if written is not None and types is None:
            return self.of(_NAMES[written] if isinstance(written, str) else written)
        if any(each.one for each in says):
            return self._joined([get_args(kind)[0]], self.of(kind))
        return self._joined([kind], *(["None"] if kind is not object and types is not None and "null" in types else []))

    def _joined(self, kinds: Iterable[Any], *more: str) -> str:
        """The union of some types."""
        names = [name for kind in kinds if kind is not None for name in self.of(kind).split(" | ")]
        return " | ".join(dict.fromkeys([*names, *more]))

    def _name(self, part: type[Part]) -> str:
        """The name of a section's type, which is written after the types that it uses. The core has no types of
        plug-ins."""
        name, module = str(part._MANIFEST.get("section", part.__name__)), part.__module__
        package = module.rpartition(".")[0] if module.startswith("etplugins.") else _CORE
        types, before = self.written.setdefault(package, {}), self._package
        if name not in types:
            types[name] = ""  # it may contain itself
            self._package = package
            text = _typed_dict(name, part, {key: self.of(kind) for key, _, kind in _fields(part)})
            self._package = before
            del types[name]
            types[name] = text
        return "Any" if before == _CORE != package else self._named(package, name)

    def _named(self, package: str, name: str) -> str:
        """A name in the module that is written, which may import it from that of a package."""
        imports = self._imports.setdefault(self._package, set())
        imports |= {(f"{package}.sections", name)} if package != self._package else set()
        return name


def _typed_dict(name: str, part: type[Part], keys: Mapping[str, str]) -> str:
    is_total = "needs" not in part._MANIFEST and part._DEFAULTS.keys().isdisjoint(part._FIELDS)
    if any(map(keyword.iskeyword, keys)):  # such as `class`
        items = "".join(f'        "{key}": {kind},\n' for key, kind in keys.items())
        return f'{name} = TypedDict(\n    "{name}",\n    {{\n{items}    }},\n    total={is_total},\n)\n'
    total = "" if is_total else ", total=False"
    about = f'    """Data of `{part.__module__.removeprefix("etbuild.")}.{part.__name__}`."""\n'
    fields = "".join(f"    {key}: {kind}\n" for key, kind in keys.items())
    return f"class {name}(TypedDict{total}):\n{about}\n{fields}"
