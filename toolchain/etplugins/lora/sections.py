"""The types of a manifest's data: `make reference` writes them from `etplugins.lora.parts`."""

from __future__ import annotations

from typing import TypedDict


class Adapter(TypedDict):
    """Data of `etplugins.lora.parts.AdapterFiles`."""

    config: str
    weights: str
