"""Makes the pages of the options of backends and quantizers from the schemas `backend-*` and `quantizer-*`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tools.reference.manifest import yaml_text
from tools.reference.markdown import link, table
from tools.reference.markdown import page as markdown_page
from tools.reference.schema_words import Schema, Words

_SOURCE = "backend-*.json and quantizer-*.json in schemas/ and toolchain/etplugins/"
_SUFFIX = ".schema.json"


def pages(root: Path) -> dict[str, str]:
    """Returns a page for each backend with options, and their index."""
    options = {}
    found = [
        path for place in ("schemas", "toolchain/etplugins/*") for path in root.glob(f"{place}/backend-*{_SUFFIX}")
    ]
    for path in sorted(found, key=lambda path: path.name):
        name = path.name.removeprefix("backend-").removesuffix(_SUFFIX)
        quantizer = path.with_name(path.name.replace("backend-", "quantizer-"))
        tables = [_table("option", path), _table("quantizer option", quantizer) if quantizer.exists() else ""]
        options[name] = [each for each in tables if each]
    written = {
        f"backend-options/{name}.md": markdown_page(f"Options of `{name}`", _SOURCE, [*_above(name), *tables])
        for name, tables in options.items()
        if tables
    }
    return {"backend-options.md": markdown_page("Backend options", _SOURCE, _index(options)), **written}


def _above(name: str) -> Iterator[str]:
    yield f"[What `{name}` is for, and what it needs](../backends.md#{name})."


def _index(options: dict[str, list[str]]) -> Iterator[str]:
    yield (
        "Options of a backend stand under `options` of an entry of "
        "[`partitioners`](manifest/methods.md#methodsnamepartitioners). "
        "Options of a quantizer stand under `options` of an entry of "
        "[`quantizers`](manifest/methods-quantize-pt2e.md#methodsnamequantizept2equantizers). "
        "[Backends](../backends.md) says what each backend is for, and what it needs."
    )
    yield "\n".join(f"- {link(name, '', f'backend-options/{name}.md')}" for name, tables in options.items() if tables)
    without = [f"`{name}`" for name, tables in options.items() if not tables]
    yield f"These backends have no options: {', '.join(without)}."


def _table(title: str, path: Path) -> str:
    schema = json.loads(path.read_text("utf-8"))
    rows = list(_rows(schema, Words(schema.get("$defs", {}), {}), ""))
    return table((title, "type", "default", "description", "example"), rows) if rows else ""


def _rows(schema: Schema, words: Words, path: str) -> Iterator[tuple[str, ...]]:
    """Returns a row for each option and each of its keys."""
    for name, option in schema["properties"].items():
        required = name in schema.get("required", [])
        default = f"`{json.dumps(option['default'])}`" if "default" in option else "required" if required else ""
        example = f"`{yaml_text(option['examples'][0])}`"
        yield f"`{path}{name}`", words.type_of(option), default, option["description"], example
        if "properties" in option:
            yield from _rows(option, words, f"{path}{name}.")
