"""Names of layers and weights as patterns: the names in several layers of one kind are one pattern."""

from __future__ import annotations

import re


def pattern(name: str) -> str:
    """A name with `*` in place of each layer's number, such as `layers.*.norm` for `layers.0.norm`."""
    return ".".join("*" if re.fullmatch(r"\d+", part) else part for part in name.split("."))
