"""Makes the page of the manifest's keys from `schemas/model.schema.json`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tools.reference.markdown import fence, link, table
from tools.reference.markdown import page as markdown_page
from tools.reference.schema_words import Schema, Words, spaced

_SOURCE = "schemas/model.schema.json"
_TESTED = "yaml run by: tests/unit/test_snippets.py"
_NAME = "NAME"  # stands for a name that the user chooses
_LONGEST = 100  # the maximum length of an example on one line, in characters
_INDEX = "[N]"  # stands for the number of an entry of a list


def page(root: Path) -> str:
    """Returns the page."""
    schema = json.loads((root / _SOURCE).read_text("utf-8"))
    return markdown_page("Manifest keys", _SOURCE, _Page(schema).blocks(), _TESTED)


@dataclass(frozen=True)
class _Key:
    """A location in a manifest.

    Attributes:
        path: The document path as error messages write it, with `NAME` and `[N]` for names and numbers:
            `methods.NAME.partitioners[N]`.
        node: Its schema.
        required: Whether the mapping around it must have it.
    """

    path: str
    node: Schema
    required: bool = False

    @property
    def heading(self) -> str:
        return f"`{self.path}`"

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]


class _Page:
    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.definitions: dict[str, Schema] = schema["$defs"]
        self.top = [_Key(name, node, name in schema["required"]) for name, node in schema["properties"].items()]
        self.strings = sorted(name for name, node in self.definitions.items() if node.get("type") == "string")
        self.homes: dict[str, _Key] = {}
        self._find_homes()
        links = {name: link(spaced(name)) for name in self.strings}
        links |= {name: link(spaced(name), home.heading) for name, home in self.homes.items()}
        self.words = Words(self.definitions, links)

    def blocks(self) -> Iterator[str]:
        """Returns the page without its title."""
        yield self.schema["description"]
        yield (
            f"A manifest is a YAML file. The path `methods.{_NAME}.partitioners{_INDEX}` means: any entry of the list "
            "`partitioners` of any method. Error messages name places in the same way. "
            "[Backend options](backend-options.md) lists the options of each backend and quantizer."
        )
        rows = [
            (link(key.heading), "yes" if key.required else "", _first_sentence(self._resolved(key.node)["description"]))
            for key in self.top
        ]
        yield table(("key", "required", "description"), rows)
        for key in self.top:
            yield from self._section(key, "##")
        yield "## Kinds of values"
        for name in self.strings:
            yield f"### {spaced(name)}"
            yield from self._description(self.definitions[name])
            yield _example(None, self.definitions[name]["examples"])

    def _section(self, key: _Key, level: str) -> Iterator[str]:
        yield f"{level} {key.heading}"
        yield from self._description(key.node)
        children = self._children_here(key)
        said = self._resolved(key.node)
        facts = [
            f"- Type: {self._type(key)}",
            "- Required." if key.required else "",
            f"- Default: `{json.dumps(said['default'])}`" if "default" in said and not key.required else "",
            "- Keys: " + ", ".join(link(f"`{child.name}`", child.heading) for child in children) if children else "",
        ]
        yield "\n".join(fact for fact in facts if fact)
        yield _example(None if key.name.endswith((_NAME, _INDEX)) else key.name, said.get("examples", []))
        for child in children:
            yield from self._section(child, "###")

    def _description(self, node: Schema) -> Iterator[str]:
        yield self._resolved(node)["description"]
        if isinstance(pattern := node.get("pattern"), str):
            longest = f", at most {node['maxLength']} characters" if "maxLength" in node else ""
            yield f"Pattern: `{pattern}`{longest}."

    def _type(self, key: _Key) -> str:
        definition = _reference(key.node)
        return self.words.type_of(
            key.node if self._elsewhere(key.node, key.path) or not definition else self.definitions[definition]
        )

    def _resolved(self, node: Schema) -> Schema:
        """Returns a schema with the keywords of the definition that it refers to. Its own keywords override them."""
        definition = _reference(node)
        return node if definition is None else {**self.definitions[definition], **node}

    def _elsewhere(self, node: Schema, path: str) -> bool:
        """Returns whether the page describes the value at this path in another section."""
        definition = _reference(node)
        return definition in self.strings or (definition in self.homes and self.homes[definition].path != path)

    def _children_here(self, key: _Key) -> list[_Key]:
        return [] if self._elsewhere(key.node, key.path) else list(self._children(key.node, key.path))

    def _children(self, node: Schema, path: str) -> Iterator[_Key]:
        """Returns the keys directly below a schema that the page describes in the same section."""
        definition = _reference(node)
        if definition:
            yield from self._children(self.definitions[definition], path)
            return
        for alternative in [*node.get("anyOf", []), *([node["then"]] if "then" in node else [])]:
            definition = _reference(alternative)
            if definition is not None and self._has_keys(alternative, ()):
                self.homes.setdefault(definition, _Key(path, alternative))
            if not self._elsewhere(alternative, path):
                yield from self._children(alternative, path)
        for name, child in node.get("properties", {}).items():
            yield _Key(f"{path}.{name}", child, name in node.get("required", []))
        for suffix, keyword in ((f".{_NAME}", "additionalProperties"), (_INDEX, "items")):
            below: Any = node.get(keyword)
            if below is not None and self._has_keys(below, ()) and not self._elsewhere(below, path + suffix):
                yield _Key(path + suffix, below)

    def _has_keys(self, node: Any, seen: tuple[str, ...]) -> bool:
        """Returns whether a value is or contains a mapping with keys that the schema names."""
        if not isinstance(node, dict):
            return False
        definition = _reference(node)
        if definition is not None:
            return definition not in seen and self._has_keys(self.definitions[definition], (*seen, definition))
        parts = [*node.get("anyOf", []), *(node.get(keyword) for keyword in ("then", "additionalProperties", "items"))]
        return "properties" in node or any(self._has_keys(part, seen) for part in parts)

    def _find_homes(self) -> None:
        """Decides where the page describes each definition that has keys.

        That is below the first top-level key that uses it, at the shortest path.
        """
        for top in self.top:
            waiting = [top]
            while waiting:
                key = waiting.pop(0)
                definition = _reference(key.node)
                if definition in self.homes:
                    continue
                if definition is not None and self._has_keys(key.node, ()):
                    self.homes[definition] = key
                waiting += self._children(key.node, key.path)


def _reference(node: Schema) -> str | None:
    reference = node.get("$ref")
    return None if reference is None else str(reference).removeprefix("#/$defs/")


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=\.)\s", text, maxsplit=1)[0]


def _example(name: str | None, examples: list[Any]) -> str:
    texts = [yaml_text(example) if name is None else _entry(name, example) for example in examples]
    return fence("yaml", "\n# or\n".join(texts)) if texts else ""


def _entry(name: str, value: Any) -> str:
    line = f"{name}: {yaml_text(value)}"
    if len(line) <= _LONGEST:
        return line
    return yaml.safe_dump({name: value}, default_flow_style=None, sort_keys=False, width=_LONGEST).strip()


def yaml_text(value: Any) -> str:
    """Returns a value as YAML on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=float("inf"))
    return text.removesuffix("\n").removesuffix("\n...")
