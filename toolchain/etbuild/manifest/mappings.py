"""Reads parts of a document that may break its schema."""

from __future__ import annotations

from collections.abc import Mapping


def mapping(data: Mapping[str, object], key: str) -> dict[str, object]:
    """The mapping under a key; empty if there is none. The document may break its schema."""
    value = data.get(key)
    return value if isinstance(value, dict) else {}
