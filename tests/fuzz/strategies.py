"""Hypothesis strategies for fuzzing: data that fits a JSON Schema or nearly does, and changed bytes of valid files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from etbuild import json_schema

_MOST = 3  # the maximum number of entries of a drawn list or mapping

# Words that readers treat specially.
WORDS = [
    *(
        "",
        "..",
        "../..",
        "/dev/zero",
        "a/../b",
        "a\\b",
        "c:d",
        "x" * 5000,
        "a\0b",
        "a\nb",
        "\x1b[2J",
        "\u202e",
        "\ud800",
    ),
    *("xnnpack", "portable", "coreml", "nxp", "custom", "model:create", "int64", "shape", "backend", "options", "*"),
]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 66), 1 << 66),
    st.sampled_from([0, 1, -1, 2**31, 2**63 - 1, 2**64]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from(WORDS),
    st.text(max_size=8),
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=_MOST), st.dictionaries(st.one_of(st.text(max_size=5), st.sampled_from(WORDS)), inner)
    ),
    max_leaves=6,
)

# Syntax of YAML that JSON does not have, and syntax of JSON that strict readers reject.
TOKENS = [
    *(b"!!bool ", b"!!int ", b"!!float ", b"!!null ", b"!!str ", b"!!binary ", b"!!timestamp ", b"!!set ", b"!!omap "),
    *(b"!!python/name:os.system ", b"! ", b"!x ", b"!<tag:yaml.org,2002:int> ", b"&a ", b"*a", b"<<: ", b"? ", b"- "),
    *(
        b"|\n",
        b">-\n",
        b"%YAML 1.1\n",
        b"%TAG ! !x\n",
        b"---\n",
        b"...\n",
        b"# ",
        b"\t",
        b"\r",
        b"\xef\xbb\xbf",
        b"\xff",
    ),
    *(b"\xc2\x85", b"\xe2\x80\xa8", b'"\\U00110000"', b'"\\ud800"', b'"\\x1b[2J"', b"017", b"0o17", b"1_000", b"1:30"),
    *(b"yes", b"2026-01-31", b".inf", b".nan", b"1e999", b"1" * 4000, b"NaN", b"Infinity", b"[" * 60, b"{a: " * 60),
    *(
        b"[" * 3000,
        b'{"a":' * 3000,
        b"null",
        b"{}",
        b"[]",
        b'"',
        b"'",
        b":",
        b",",
        b"}",
        b"]",
        b"\0",
        b"../../",
        b"/dev/zero",
    ),
]


class _FromSchema:
    """Draws data that fits a schema, and sometimes other data."""

    def __init__(self, root: dict[str, Any], draw: st.DrawFn, odd: int) -> None:
        self.root = root
        self.draw = draw
        self.odd = odd

    def value(self, part: Any, depth: int = 0) -> Any:
        if self.odd and self.draw(st.integers(0, self.odd)) == 0:
            return self.draw(ANYTHING)
        while "$ref" in part:
            part = {
                **self.root["$defs"][part["$ref"].rpartition("/")[2]],
                **{k: v for k, v in part.items() if k != "$ref"},
            }
        for whole in part.get("allOf", ()):
            while "$ref" in whole:
                whole = self.root["$defs"][whole["$ref"].rpartition("/")[2]]
            part = _merged(part, whole)
        if "enum" in part:
            return self.draw(st.sampled_from(part["enum"]))
        if "anyOf" in part:
            return self.value(self.draw(st.sampled_from(part["anyOf"])), depth)
        examples = part.get("examples")
        if examples and self.draw(st.integers(0, 2)) == 0:
            return self.draw(st.sampled_from(examples))
        kinds = part.get("type", "object" if "properties" in part else "null")
        kind = self.draw(st.sampled_from(kinds)) if isinstance(kinds, list) else kinds
        return self.of_kind(kind, part, depth)

    def of_kind(self, kind: str, part: Any, depth: int) -> Any:
        low, high = part.get("minimum", -5), part.get("maximum", 1 << 40)
        match kind:
            case "object":
                return self.mapping(part, depth + 1)
            case "array":
                return self.list(part, depth + 1)
            case "string" if "pattern" in part:
                return self.draw(st.from_regex(part["pattern"]))
            case "string":
                return self.draw(st.one_of(st.sampled_from(WORDS), st.text(max_size=8)))
            case "integer":
                return self.draw(st.integers(int(low), int(high)))
            case "number":
                return self.draw(st.one_of(st.integers(0, 9), st.floats(allow_nan=False, allow_infinity=False)))
            case "boolean":
                return self.draw(st.booleans())
        return None

    def mapping(self, part: Any, depth: int) -> dict[str, Any]:
        known, required = part.get("properties", {}), part.get("required", [])
        chosen = [key for key in known if key in required or (depth < 8 and self.draw(st.integers(0, 3)) == 0)]
        found = {key: self.value(known[key], depth) for key in chosen}
        others = part.get("additionalProperties")
        if isinstance(others, dict) and depth < 8:
            for name in self.draw(st.lists(st.sampled_from(["forward", "decode", "a", *WORDS[:8]]), max_size=2)):
                found[name] = self.value(others, depth)
        return found

    def list(self, part: Any, depth: int) -> list[Any]:
        count = self.draw(st.integers(0, _MOST if depth < 8 else 0))
        if "prefixItems" in part:
            return [self.value(item, depth) for item in part["prefixItems"]]
        return [self.value(part.get("items", {}), depth) for _ in range(count)]


def _merged(part: Any, other: Any) -> Any:
    return {
        **other,
        **part,
        "properties": {**other.get("properties", {}), **part.get("properties", {})},
        "required": [*other.get("required", []), *part.get("required", [])],
    }


@st.composite
def documents(draw: st.DrawFn, schema_name: str | Path) -> bytes:
    """Draws JSON, which is also YAML, that fits a schema or nearly does."""
    root: Any = json_schema.validator(schema_name).schema
    data = _FromSchema(root, draw, draw(st.sampled_from([0, 30, 8]))).value(root)
    text = json.dumps(data, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1])))
    return text.encode("utf-8", "surrogatepass")


@st.composite
def mutated_trees(draw: st.DrawFn, sound: list[bytes]) -> bytes:
    """Draws valid JSON with a few values changed."""
    data = json.loads(draw(st.sampled_from(sound)))
    for _ in range(draw(st.integers(1, 3))):
        parent: Any = None
        key: Any = None
        value = data
        while isinstance(value, (dict, list)) and value and draw(st.integers(0, 5)):
            parent, key = value, draw(st.sampled_from(sorted(value) if isinstance(value, dict) else range(len(value))))
            value = value[key]
        if parent is None:
            return json.dumps(draw(ANYTHING)).encode()
        if draw(st.integers(0, 3)):
            parent[key] = draw(ANYTHING)
        else:
            del parent[key]
    return json.dumps(data).encode()


@st.composite
def mutated_bytes(draw: st.DrawFn, sound: list[bytes]) -> bytes:
    """Draws valid bytes, of which a few are changed, removed, doubled or inserted."""
    data = bytearray(draw(st.sampled_from(sound)))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(data)))
        end = min(len(data), at + draw(st.sampled_from([1, 1, 2, 4, 8, 100])))
        match draw(st.sampled_from(["change", "change", "lose", "double", "token", "cut"])):
            case "change":
                data[at:end] = draw(st.binary(min_size=end - at, max_size=end - at))
            case "lose":
                del data[at:end]
            case "double":
                data[at:at] = data[at:end]
            case "token":
                data[at:at] = draw(st.sampled_from(TOKENS))
            case "cut" if draw(st.booleans()):
                del data[at:]
    return bytes(data)
