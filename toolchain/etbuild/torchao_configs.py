"""The named configurations of torchao."""

from __future__ import annotations

TORCHAO_CONFIGS = {"8da4w": 32, "8da8w": None, "int4": 32, "int8": None, "packed": None}
"""How many weights of a row share a scale, by the name of the configuration, if the manifest does not say it. None for
the whole row."""
