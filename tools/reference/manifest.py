"""Makes the pages of the manifest's keys from `schemas/model.schema.json`: one for each section, and an index."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tools.reference.markdown import LONGEST_PAGE, fence, first_sentence, length, link, table
from tools.reference.markdown import page as markdown_page
from tools.reference.schema_words import Schema, Words, spaced

_SOURCE = "schemas/model.schema.json"
_TESTED = "yaml run by: tests/unit/test_snippets.py"
_NAME = "NAME"  # stands for a name that the user chooses
_LONGEST = 100  # the maximum length of an example on one line, in characters
_INDEX_PAGE = "manifest.md"
_ABOVE = 6  # the lines of a page above its content
_INDEX = "[N]"  # stands for the number of an entry of a list


def pages(root: Path) -> dict[str, str]:
    """Returns a page for each section, more for a section that does not fit a page, and their index."""
    schema = json.loads((root / _SOURCE).read_text("utf-8"))
    return _Pages(schema).texts()


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

    @property
    def own_page(self) -> str:
        """The page that starts with the key, if one does."""
        names = [name.removesuffix(_INDEX) for name in self.path.split(".") if name != _NAME]
        return f"manifest/{'-'.join(names)}.md"


class _Pages:
    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.definitions: dict[str, Schema] = schema["$defs"]
        self.top = [_Key(name, node, name in schema["required"]) for name, node in schema["properties"].items()]
        self.strings = sorted(name for name, node in self.definitions.items() if node.get("type") == "string")
        self.homes: dict[str, _Key] = {}
        self._find_homes()
        links = {name: link(spaced(name), None, _INDEX_PAGE) for name in self.strings}
        links |= {name: home.heading for name, home in self.homes.items()}  # provisional, until all homes are known
        self.words = Words(self.definitions, links)
        self.page_of: dict[str, str] = {}  # the name of the page of each key, by the key's path
        self.firsts: dict[str, _Key] = {}  # the key that each page starts with
        for key in self.top:
            if self._children_here(key):
                self._give_page(key)
            else:
                self.page_of[key.path] = _INDEX_PAGE
        links |= {name: self._link(spaced(name), home) for name, home in self.homes.items()}

    def texts(self) -> dict[str, str]:
        """Returns the pages by their name."""
        written = {_INDEX_PAGE: markdown_page("Manifest keys", _SOURCE, self._index(), _TESTED)}
        for page, key in self.firsts.items():
            written[page] = markdown_page(key.heading, _SOURCE, [*self._about(key), *self._below(key)], _TESTED)
        return written

    def _give_page(self, first: _Key) -> None:
        """Puts a key and the keys below it on a page. While they do not fit, moves the longest part to another page."""
        self.firsts[first.own_page] = first
        self.page_of |= dict.fromkeys((key.path for key in self._keys(first)), first.own_page)
        parts = self._children_here(first)
        while len(parts) == 1:  # `methods.NAME`
            parts = self._children_here(parts[0])
        parts = sorted(parts, key=self._length)
        while self._length(first) > LONGEST_PAGE - _ABOVE:
            self._give_page(parts.pop())

    def _length(self, first: _Key) -> int:
        """Returns the lines that a key and those below it need on the page of the key."""
        page = self.page_of.get(first.path)
        return sum(2 + length(self._about(key)) for key in self._keys(first) if self.page_of.get(key.path) == page)

    def _keys(self, first: _Key | None = None) -> Iterator[_Key]:
        """Returns a key and all below it, in the order of the pages. Default: all keys."""
        yield from [first] if first else []
        for key in self._children_here(first) if first else self.top:
            yield from self._keys(key)

    def _link(self, text: str, key: _Key) -> str:
        return link(text, key.heading, self.page_of.get(key.path, ""))

    def _index(self) -> Iterator[str]:
        yield self.schema["description"]
        yield (
            f"A manifest is a YAML file. The path `methods.{_NAME}.partitioners{_INDEX}` means: any entry of the list "
            "`partitioners` of any method. Error messages name places in the same way. "
            "[Backend options](backend-options.md) lists the options of each backend and quantizer."
        )
        rows = [
            (
                self._link(key.heading, key),
                "yes" if key.required else "",
                first_sentence(self._resolved(key.node)["description"]),
            )
            for key in self.top
        ]
        yield table(("key", "required", "description"), rows)
        for key in self.top:
            if self.page_of[key.path] == _INDEX_PAGE:
                yield from self._section(key)
        yield "## Kinds of values"
        for name in self.strings:
            yield f"### {spaced(name)}"
            yield from self._description(self.definitions[name])
            yield _example(None, self.definitions[name]["examples"])

    def _section(self, key: _Key) -> Iterator[str]:
        yield f"## {key.heading}"
        yield from self._about(key)
        yield from self._below(key)

    def _below(self, key: _Key) -> Iterator[str]:
        for child in self._children_here(key):
            if self.page_of[child.path] == self.page_of[key.path]:
                yield from self._section(child)

    def _about(self, key: _Key) -> Iterator[str]:
        yield from self._description(key.node)
        children = self._children_here(key)
        said = self._resolved(key.node)
        facts = [
            f"- Type: {self._type(key)}",
            "- Required." if key.required else "",
            f"- Default: `{json.dumps(said['default'])}`" if "default" in said and not key.required else "",
            "- Keys: " + ", ".join(self._link(f"`{child.name}`", child) for child in children) if children else "",
        ]
        yield "\n".join(fact for fact in facts if fact)
        yield _example(None if key.name.endswith((_NAME, _INDEX)) else key.name, said.get("examples", []))

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
        """Decides where the pages describe each definition that has keys.

        Each is described below the first top-level key that uses it, at the shortest path.
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
