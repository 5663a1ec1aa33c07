"""Makes the page of the options of backends and quantizers from `backend-*` and `quantizer-*` in `schemas/`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tools.reference.manifest import yaml_text
from tools.reference.markdown import page as markdown_page
from tools.reference.markdown import table
from tools.reference.schema_words import Schema, Words

_SUFFIX = ".schema.json"


def page(root: Path) -> str:
    """Returns the page."""
    return markdown_page("Backend options", "schemas/backend-*.json and schemas/quantizer-*.json", _blocks(root))


def _blocks(root: Path) -> Iterator[str]:
    yield (
        "Options of a backend stand under `options` of an entry of "
        "[`partitioners`](manifest.md#methodsnamepartitioners). "
        "Options of a quantizer stand under `options` of an entry of "
        "[`quantizers`](manifest.md#methodsnamequantizept2equantizers). "
        "[Backends](../backends.md) says what each backend is for, and what it needs."
    )
    schemas = root / "schemas"
    names = sorted(path.name.removeprefix("backend-") for path in schemas.glob(f"backend-*{_SUFFIX}"))
    for name in names:
        yield f"## {name.removesuffix(_SUFFIX)}"
        yield _table("option", schemas / f"backend-{name}") or "No options."
        quantizer = schemas / f"quantizer-{name}"
        if quantizer.exists():
            yield _table("quantizer option", quantizer) or "The quantizer has no options."


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
