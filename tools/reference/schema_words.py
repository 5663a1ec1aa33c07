"""Describes a value in a JSON Schema in words."""

from __future__ import annotations

import re
from typing import Any

Schema = dict[str, Any]

_LARGEST = 9223372036854775807  # the largest 64-bit integer: readers need not know this limit
_PLURALS = {
    "string": "strings",
    "integer": "integers",
    "number": "numbers",
    "mapping": "mappings",
    "true or false": "booleans",
}
_TYPES = {"boolean": "true or false", "null": "`null`", "object": "mapping"}


def spaced(name: str) -> str:
    """Returns `fileStem` as `file stem`."""
    return re.sub(r"[A-Z]", lambda match: f" {match[0].lower()}", name)


class Words:
    """Describes the types of a schema in words.

    Args:
        definitions: The `$defs` of the schema.
        links: For each definition with its own section on the page, the text of a link to it.
    """

    def __init__(self, definitions: dict[str, Schema], links: dict[str, str]) -> None:
        self.definitions = definitions
        self.links = links

    def type_of(self, node: Schema) -> str:
        """Returns the type of a value, such as `string` or `list of integers`."""
        if "$ref" in node:
            name = node["$ref"].rpartition("/")[2]
            return self.links.get(name) or self.type_of(self.definitions[name])
        if "anyOf" in node:
            return ", or ".join(dict.fromkeys(self.type_of(one) for one in node["anyOf"]))
        if "enum" in node:
            values = ", ".join(f"`{value}`" for value in node["enum"])
            return values if len(node["enum"]) == 1 else f"one of {values}"
        types = node.get("type", [])
        names = [types] if isinstance(types, str) else types
        return " or ".join(self._of_type(name, node) for name in names) or "any value"

    def _of_type(self, name: str, node: Schema) -> str:
        if name in ("integer", "number"):
            return name + _range(node)
        if name == "array":
            return self._list(node)
        entries = node.get("additionalProperties")
        if name == "object" and isinstance(entries, dict) and "properties" not in node:
            return f"mapping of names to {self._plural(entries)}"
        return _TYPES.get(name, name)

    def _list(self, node: Schema) -> str:
        entries = f"list of {self._plural(node['items'])}" if "items" in node else "list"
        limits = ["at least one"] if node.get("minItems") == 1 else []
        limits += ["no duplicates"] if node.get("uniqueItems") else []
        return f"{entries} ({', '.join(limits)})" if limits else entries

    def _plural(self, node: Schema) -> str:
        one = self.type_of(node)
        return _PLURALS.get(one) or (f"({one})" if " or " in one or "," in one else one)


def _range(node: Schema) -> str:
    least, most = node.get("minimum"), node.get("maximum")
    if most in (None, _LARGEST):
        return "" if least is None else f", at least {least}"
    return f", at most {most}" if least is None else f" from {least} to {most}"
