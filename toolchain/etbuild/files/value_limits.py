"""Limits for the values of YAML and JSON files."""

from __future__ import annotations

import re

MAX_DEPTH = 50
INT64 = (-(1 << 63), (1 << 63) - 1)


def fits_64_bits(number: int) -> bool:
    """Whether a whole number fits into 64 bits, with a sign or without."""
    return -(1 << 63) <= number < 1 << 64


has_surrogate = re.compile("[\ud800-\udfff]").search
"""Finds half of a surrogate pair in a text. UTF-8 cannot encode it."""
