"""Reads parts of a document that may break its schema."""

from __future__ import annotations

from typing import Any


def mapping(data: dict[str, Any], key: str) -> dict[str, Any]:
    """The mapping under a key; empty if there is none. The document may break its schema."""
    value = data.get(key)
    return value if isinstance(value, dict) else {}
