"""Shows values of JSON data as short lines."""

from __future__ import annotations

import json
from typing import Any

from etbuild.errors import DocumentPath
from etbuild.files.json_diff import ABSENT


def is_digest(text: str) -> bool:
    """Whether a text has the form of a sha256 in hex."""
    return len(text) == 64 and set(text) <= set("0123456789abcdef")


def show(value: Any, path: DocumentPath = ()) -> str:
    """Returns a value as one line. Shapes become `1x16`; digests and long values are shortened."""
    if value is ABSENT:
        return "nothing"
    if isinstance(value, list) and path and path[-1] == "shape":
        return "x".join(map(str, value)) or "a scalar"
    if isinstance(value, dict):
        text = "{" + ", ".join(f"{key}: {show(item, (key,))}" for key, item in value.items()) + "}"
    elif isinstance(value, list):
        text = "[" + ", ".join(map(show, value)) + "]"
    elif isinstance(value, str) and is_digest(value):
        return value[:16]
    else:
        text = json.dumps(value) if value is None or isinstance(value, bool) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
